//! RoCEv2 packets: headers, opcode table, invariant CRC.
