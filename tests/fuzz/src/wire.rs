//! The packet parser.

use faultline_wire::packet::{is_roce, parse, parse_trusted, seal};

/// A frame, unchanged and with a right iCRC. A parsed frame can be written, and is parsed as the same again.
pub fn packet(data: &[u8]) {
    let roce = is_roce(data);
    if let Ok(parsed) = parse(data) {
        assert!(roce, "{parsed:?}");
        assert_eq!(
            parse_trusted(data).map(|p| (p.header, p.payload)),
            Ok((parsed.header, parsed.payload))
        );
    }
    let mut sealed = data.to_vec();
    if seal(&mut sealed).is_err() {
        return;
    }
    let Ok(parsed) = parse(&sealed) else { return };
    let mut again = vec![0; parsed.header.frame_len(parsed.payload.len())];
    // Extended headers are there by the opcode, so there is nothing to refuse but a length.
    if parsed
        .header
        .emit(parsed.payload.len(), &mut again)
        .is_err()
    {
        return;
    }
    let at = parsed.header.header_len();
    again[at..at + parsed.payload.len()].copy_from_slice(parsed.payload);
    seal(&mut again).expect("a frame that was written");
    let second = parse(&again).expect("a frame that was written");
    assert_eq!(second.payload, parsed.payload);
    assert_eq!(second.header.extended(), parsed.header.extended());
    assert_eq!(second.header.bth.psn, parsed.header.bth.psn);
    assert_eq!(second.header.bth.opcode, parsed.header.bth.opcode);
    assert_eq!(second.header.reth, parsed.header.reth);
}
