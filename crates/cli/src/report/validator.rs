//! A validator of the subset of JSON Schema that docs/*.schema.json use. Another keyword is an error, so
//! that nothing is written there that nothing holds.

use serde_json::Value;

/// Holds `value` against `schema`, a part of `root`.
pub fn validate(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    for (keyword, rule) in schema.as_object().ok_or("a schema is an object")? {
        let ok = match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => true,
            "$ref" => {
                let pointer = text(rule)?.strip_prefix('#').ok_or("only local references")?;
                return validate(value, root.pointer(pointer).ok_or(format!("no {pointer}"))?, root);
            }
            "oneOf" => {
                let results: Vec<_> =
                    list(rule)?.iter().map(|schema| validate(value, schema, root)).collect();
                if results.iter().filter(|result| result.is_ok()).count() != 1 {
                    return Err(format!("not exactly one of {results:?}: {value}"));
                }
                true
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is(value, kind)),
                kind => is(value, kind),
            },
            "enum" => list(rule)?.contains(value),
            "minimum" => value.as_f64().is_none_or(|n| rule.as_f64().is_some_and(|least| n >= least)),
            "maximum" => value.as_f64().is_none_or(|n| rule.as_f64().is_some_and(|most| n <= most)),
            "required" => match value {
                Value::Object(fields) => {
                    list(rule)?.iter().all(|key| key.as_str().is_some_and(|key| fields.contains_key(key)))
                }
                _ => true,
            },
            "properties" => {
                let fields = rule.as_object().ok_or("properties is an object")?;
                for (key, schema) in fields {
                    if let Some(value) = value.get(key) {
                        validate(value, schema, root).map_err(|error| format!("{key}: {error}"))?;
                    }
                }
                true
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    validate(item, rule, root)?;
                }
                true
            }
            "minItems" => value.as_array().is_none_or(|items| Some(items.len() as u64) >= rule.as_u64()),
            "maxItems" => value.as_array().is_none_or(|items| Some(items.len() as u64) <= rule.as_u64()),
            _ => return Err(format!("{keyword} is not in the subset")),
        };
        if !ok {
            return Err(format!("{keyword} {rule} does not hold for {value}"));
        }
    }
    Ok(())
}

/// The names of the fields of `value`'s objects that the schema of its event does not mention.
pub fn unknown_fields(value: &Value, schema: &Value) -> Vec<String> {
    let known = schema["properties"].as_object();
    let fields = value.as_object().into_iter().flatten();
    fields
        .filter(|(key, _)| known.is_none_or(|known| !known.contains_key(*key)))
        .map(|(key, _)| key.clone())
        .collect()
}

fn is(value: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_u64() || value.is_i64(),
        _ => false,
    }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or(format!("not a string: {value}"))
}

fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or(format!("not a list: {value}"))
}
