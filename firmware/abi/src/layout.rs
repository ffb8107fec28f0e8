//! Macros that declare a structure or a group of constants once, for Rust and for C.

/// One field of a [`StructLayout`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in Rust and in C.
    pub name: &'static str,
    /// C type.
    pub ctype: &'static str,
    /// Number of elements if the field is an array, else 0.
    pub dim: usize,
    /// Offset in bytes.
    pub offset: usize,
    /// Description, one element per line.
    pub doc: &'static [&'static str],
}

/// Layout of one structure, for the C header and for tests.
#[derive(Clone, Copy, Debug)]
pub struct StructLayout {
    /// C name, `struct` prefix excluded.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Fields in ascending order of offset.
    pub fields: &'static [Field],
    /// Description, one element per line.
    pub doc: &'static [&'static str],
}

/// One named number.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// C name.
    pub name: &'static str,
    /// Value.
    pub value: u64,
    /// Description, one element per line.
    pub doc: &'static [&'static str],
}

/// A group of related constants.
#[derive(Clone, Copy, Debug)]
pub struct ConstantGroup {
    /// Description, one element per line.
    pub doc: &'static [&'static str],
    /// Common beginning of the names of its constants.
    pub prefix: &'static str,
    /// The numbers.
    pub constants: &'static [Constant],
}

impl ConstantGroup {
    /// The constants: their names without the prefix, and their values.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let constants = self.constants.iter();
        constants.filter_map(|constant| {
            let name = constant.name.strip_prefix(self.prefix)?;
            Some((name, constant.value))
        })
    }

    /// The name of a value without the prefix; `None`: no constant has it.
    pub fn name(&self, value: impl Into<u64>) -> Option<&'static str> {
        let value = value.into();
        let mut names = self.names();
        names.find(|(_, of)| *of == value).map(|(name, _)| name)
    }
}

/// A type that a field of an ABI structure can have.
pub(crate) trait AbiType {
    /// C type of the field, or of one element.
    const CTYPE: &'static str;
    /// Number of elements if it is an array, else 0.
    const DIM: usize = 0;
}

impl AbiType for u8 {
    const CTYPE: &'static str = "__u8";
}
impl AbiType for crate::U16 {
    const CTYPE: &'static str = "__le16";
}
impl AbiType for crate::U32 {
    const CTYPE: &'static str = "__le32";
}
impl AbiType for crate::U64 {
    const CTYPE: &'static str = "__le64";
}
impl<T: AbiType, const N: usize> AbiType for [T; N] {
    const CTYPE: &'static str = T::CTYPE;
    const DIM: usize = N;
}

/// Declares little-endian structures of asserted size together with their [`StructLayout`].
macro_rules! abi_struct {
    ($(
        $(#[doc = $doc:literal])*
        $cname:literal $name:ident [$size:literal] {
            $( $(#[doc = $fdoc:literal])* $field:ident : $ty:ty, )*
        }
    )*) => { $(
        $(#[doc = $doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $ty, )* }

        impl Default for $name {
            /// All zero.
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }

        const _: () = assert!(core::mem::size_of::<$name>() == $size);

        impl crate::layout::AbiType for $name {
            const CTYPE: &'static str = concat!("struct ", $cname);
        }

        impl $name {
            /// Layout of this structure.
            pub const LAYOUT: crate::StructLayout = crate::StructLayout {
                name: $cname,
                size: $size,
                doc: &[$($doc),*],
                fields: &[$( crate::Field {
                    name: stringify!($field),
                    ctype: <$ty as crate::layout::AbiType>::CTYPE,
                    dim: <$ty as crate::layout::AbiType>::DIM,
                    offset: core::mem::offset_of!($name, $field),
                    doc: &[$($fdoc),*],
                } ),*],
            };
        }
    )* };
}

/// Declares a group of constants together with its [`ConstantGroup`].
macro_rules! abi_consts {
    (
        $(#[doc = $gdoc:literal])*
        group $group:ident : $ty:ty, prefix $prefix:literal {
            $( $(#[doc = $doc:literal])* $name:ident = $value:expr; )*
        }
    ) => {
        $( $(#[doc = $doc])* pub const $name: $ty = $value; )*

        $(#[doc = $gdoc])*
        pub const $group: crate::ConstantGroup = crate::ConstantGroup {
            doc: &[$($gdoc),*],
            prefix: $prefix,
            constants: &[$( crate::Constant {
                name: concat!($prefix, stringify!($name)),
                value: $value as u64,
                doc: &[$($doc),*],
            } ),*],
        };
    };
}
