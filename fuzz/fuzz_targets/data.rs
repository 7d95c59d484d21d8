//! Data frames up to their payload, in the steps of a reader: no panic; what decodes encodes to the same
//! bytes.
#![no_main]
use haul_core::wire::{DataPreamble, FrameHeader, decode_data_descriptor, encode_data_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((header, rest)) = data.split_first_chunk() else { return };
    let Some((preamble, rest)) = rest.split_first_chunk() else { return };
    let Ok(header) = FrameHeader::decode(header) else { return };
    let Ok(preamble) = DataPreamble::decode(&header, preamble) else { return };
    let Some(descriptor) = rest.get(..preamble.descriptor_len as usize) else { return };
    if let Ok(entries) = decode_data_descriptor(&preamble, descriptor) {
        let again = encode_data_header(&entries, header.stream, header.epoch, header.seq);
        assert_eq!(again, data[..again.len()]);
    }
});
