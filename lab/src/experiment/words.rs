//! Words of experiments: networks, sizes, times, settings.
//!
//! In: text, or a single TOML value. Out: what it means, or an error that names it.

use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::wan;

/// A setting as text.
///
/// # Errors
/// It is no single value.
pub fn scalar(value: &toml::Value) -> anyhow::Result<String> {
    Ok(match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Boolean(yes) => yes.to_string(),
        other => bail!("a {} is neither a text, a whole number nor true or false", other.type_str()),
    })
}

/// The network of this name; none is loopback.
///
/// # Errors
/// Neither a preset nor options of one.
pub fn network(text: &str) -> anyhow::Result<Option<wan::Up>> {
    if text == "loopback" {
        return Ok(None);
    }
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        match word.split_once('=') {
            Some((key, value)) => words.extend([format!("--{key}"), value.to_owned()]),
            None => words.push(word.to_owned()),
        }
    }
    wan::Up::parse(&words).map(Some).with_context(|| format!("{text:?}"))
}

/// Bytes, as `1GiB`.
pub fn parse_size(text: &str) -> anyhow::Result<u64> {
    crate::targets::parse_size(text).map_err(anyhow::Error::msg)
}

/// A time in seconds, minutes or hours: `30s`, `5m`, `2h`.
///
/// # Errors
/// It is none.
pub fn parse_time(text: &str) -> anyhow::Result<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[end..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => bail!("{text:?} is no time; write it like 30s, 5m or 2h"),
    };
    let number: u32 =
        text[..end].parse().with_context(|| format!("{text:?} does not begin with a number"))?;
    Ok(Duration::from_secs(u64::from(number) * factor))
}
