//! PCI config space, capabilities, BARs and MSI-X of the function.
