//! The first frame of a stream and its answer: no panic; what decodes encodes to the same bytes.
#![no_main]
use haul_core::wire::{Join, Joined, ResumeFrom};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk()
        && let Ok(join) = Join::decode(bytes)
    {
        assert_eq!(&join.encode(), bytes);
    }
    if let Some(bytes) = data.first_chunk()
        && let Ok((answer, stream, epoch)) = Joined::decode(bytes)
    {
        assert_eq!(&answer.encode(stream, epoch), bytes);
    }
    if let Some(bytes) = data.first_chunk()
        && let Ok(resume) = ResumeFrom::decode(bytes)
    {
        assert_eq!(&resume.encode(), bytes);
    }
});
