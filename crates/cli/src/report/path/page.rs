//! Probes of paths as pages.

use haul_probe::path::PathProbe;

use super::{besides, gives, part_name};
use crate::progress::time;
use crate::report::html::{Page, Table};
use crate::report::network::setting;
use crate::report::probe::rate;

/// A whole probe.
pub fn probe(probe: &PathProbe) -> String {
    let facts = vec![
        ("from", probe.source.clone()),
        ("to", probe.destination.clone()),
        ("measured on", probe.host.clone()),
        ("took", time(probe.seconds)),
        ("weakest part", probe.weakest.as_deref().map_or("none".into(), part_name)),
        (
            "a copy will reach",
            probe.expected.map_or("no limit was found".into(), |expected| rate(expected) + &besides(probe)),
        ),
        ("by", format!("haul {}", probe.haul)),
    ];
    let mut page = Page::new(&format!("Path probe: {} to {}", probe.source, probe.destination)).facts(&facts);
    if !probe.remarks.is_empty() {
        page = page.section("Remarks").list(&probe.remarks);
    }
    let row = |part: &haul_probe::path::Part| {
        let weakest = if Some(&part.part) == probe.weakest.as_ref() { "weakest" } else { "" };
        vec![part_name(&part.part), gives(part), weakest.into(), part.place.clone(), part.how.clone()]
    };
    page = page.section("The five parts").table(&Table {
        caption: "What each part can give, in the order in which a byte meets them",
        columns: &[
            ("part", false),
            ("rate", true),
            ("", false),
            ("where", false),
            ("how it was found", false),
        ],
        rows: probe.parts.iter().map(row).collect(),
    });
    if let Some(network) = &probe.network {
        let row = |point: &haul_probe::network::Point| vec![setting(&point.setting), rate(point.rate)];
        page = page.section("The network, from memory to memory").table(&Table {
            caption: "All measurements",
            columns: &[("setting", false), ("rate", true)],
            rows: network.points.iter().map(row).collect(),
        });
    }
    page.render()
}
