//! `haul layout FILE...`: which storage targets have which part of a file. The list is the product, so it
//! goes to stdout.

use std::fmt::Write as _;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul::api::FileLayout;
use haul::errno;
use serde::Serialize;

use super::{FAILED, complain};
use crate::args::LayoutArgs;
use crate::escape;
use crate::report::json::PathFields;

/// Targets that are named in one line for people; the JSON form has them all.
const SHOWN_MAX: usize = 16;
/// Components that are shown to people.
const LINES_MAX: usize = 32;

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    path: PathFields,
    size: u64,
    provider: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_flat: Option<&'a str>,
    components: Vec<Component<'a>>,
}

#[derive(Serialize)]
struct Component<'a> {
    start: u64,
    /// None: the end of the file, wherever that will be.
    end: Option<u64>,
    /// None: the whole component lies on one target.
    stripe_size: Option<u64>,
    stripe_count: usize,
    targets: Vec<&'a str>,
}

impl super::Run for LayoutArgs {
    fn run(&self) -> i32 {
        run(self)
    }
}

fn run(args: &LayoutArgs) -> i32 {
    let mut code = 0;
    for file in &args.files {
        let bytes = file.as_bytes();
        let layout = match haul::api::layout(Path::new(file)) {
            Ok(layout) => layout,
            Err(error) => {
                code = complain(&error.text, FAILED);
                continue;
            }
        };
        let text = if args.json { json(bytes, &layout) } else { lines(bytes, &layout) };
        if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
            return complain(&format!("cannot write to stdout: {}", errno::text(error)), FAILED);
        }
    }
    code
}

fn components(layout: &FileLayout) -> Vec<Component<'_>> {
    let all = layout.layout.components();
    let ends = all.iter().skip(1).map(|next| Some(next.start)).chain([None]);
    let named = all.iter().zip(ends).map(|(found, end)| Component {
        start: found.start,
        end,
        stripe_size: Some(found.stripe_size).filter(|_| found.targets.len() > 1),
        stripe_count: found.targets.len(),
        targets: found.targets.iter().map(|target| target.as_str()).collect(),
    });
    named.collect()
}

fn json(path: &[u8], layout: &FileLayout) -> String {
    let report = Report {
        path: PathFields::new(path),
        size: layout.size,
        provider: &layout.provider,
        why_flat: layout.why_flat.as_deref(),
        components: components(layout),
    };
    serde_json::to_string(&report).expect("plain fields serialise") + "\n"
}

fn lines(path: &[u8], layout: &FileLayout) -> String {
    let mut out =
        format!("{}: {}, {} bytes\n", escape::name(path), escape::text(&layout.provider), layout.size);
    if let Some(why) = &layout.why_flat {
        let _ = writeln!(out, "  taken for one target: {}", escape::text(why));
    }
    let all = components(layout);
    for component in all.iter().take(LINES_MAX) {
        let end = component.end.map_or("end".into(), |end| end.to_string());
        let _ = write!(out, "  {}..{end}  ", component.start);
        if let Some(size) = component.stripe_size {
            let _ = write!(out, "{} stripes of {size} bytes on ", component.stripe_count);
        }
        let shown = component.targets.iter().take(SHOWN_MAX).map(|target| escape::text(target));
        out += &shown.collect::<Vec<_>>().join(", ");
        match component.targets.len().saturating_sub(SHOWN_MAX) {
            0 => out.push('\n'),
            more => {
                let _ = writeln!(out, ", and {more} more");
            }
        }
    }
    if all.len() > LINES_MAX {
        let _ = writeln!(out, "  and {} more components; --json has them", all.len() - LINES_MAX);
    }
    out
}
