//! JSON from a peer, a disk or a user's socket (first byte: of what): no panic; what is read survives its own
//! round trip.
#![no_main]
use std::path::Path;

use haul::ctl::{Reply, Request};
use haul::options::AgentRequest;
use haul::passport::{pair, storage};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((what, json)) = data.split_first() else { return };
    match what % 5 {
        0 => {
            if let Ok(request) = serde_json::from_slice::<AgentRequest>(json) {
                let _ = request.options.check();
                let again = serde_json::to_vec(&request).expect("plain fields");
                assert_eq!(serde_json::from_slice::<AgentRequest>(&again).expect("as it was"), request);
            }
        }
        1 => {
            if let Ok(request) = serde_json::from_slice::<Request>(json) {
                let again = serde_json::to_vec(&request).expect("plain fields");
                assert_eq!(serde_json::from_slice::<Request>(&again).expect("as it was"), request);
            }
        }
        2 => drop(serde_json::from_slice::<Reply>(json)),
        3 => drop(storage::parse(json, Path::new("passport"))),
        _ => drop(pair::parse(json, Path::new("passport"))),
    }
});
