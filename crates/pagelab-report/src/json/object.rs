//! Builder of JSON objects in which every absent value has a reason.

use std::borrow::Borrow;

use pagelab_model::{Absence, ZoneKey};
use serde::Serialize;
use serde_json::{Map, Value};

/// Object under construction; fields keep their order of insertion.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct JsonObject(Map<String, Value>);

impl JsonObject {
    /// Makes an object without fields.
    pub fn new() -> JsonObject {
        JsonObject::default()
    }

    /// Makes an object that begins with the node and the name of a zone.
    pub fn for_zone(key: &ZoneKey) -> JsonObject {
        JsonObject::new().field("node", key.node.0).field("zone", key.zone.as_str())
    }

    /// Adds a value.
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> JsonObject {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a value, or null and `<name>_absent_reason`.
    pub fn optional(self, name: &str, value: Option<impl Into<Value>>, reason: &str) -> JsonObject {
        match value {
            Some(value) => self.field(name, value),
            None => self.with_null(name, reason),
        }
    }

    /// Adds a value that only some documents have, described so in docs/json.md.
    pub fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> JsonObject {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// Adds a reading, or null and the reason of its absence.
    pub fn with_reading<T>(
        self,
        name: &str,
        reading: &Result<T, impl Borrow<Absence>>,
        to_json: impl FnOnce(&T) -> Value,
    ) -> JsonObject {
        match reading {
            Ok(value) => self.field(name, to_json(value)),
            Err(absence) => self.with_null(name, &absence.borrow().to_string()),
        }
    }

    fn with_null(self, name: &str, reason: &str) -> JsonObject {
        self.field(name, Value::Null).field(&format!("{name}_absent_reason"), reason)
    }
}

impl From<JsonObject> for Value {
    fn from(object: JsonObject) -> Value {
        Value::Object(object.0)
    }
}

/// Makes an array by applying `to_json` to each item.
pub fn to_array<T>(items: impl IntoIterator<Item = T>, to_json: impl FnMut(T) -> JsonObject) -> Value {
    items.into_iter().map(to_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::AbsenceReason;

    #[test]
    fn null_never_stands_without_its_reason() {
        let absence = Absence::new("/proc/x", AbsenceReason::NotPermitted, "").with_hint("run as root");
        let object = JsonObject::new()
            .field("a", 1)
            .optional("b", None::<u64>, "this kernel does not count it")
            .with_reading("c", &Err(absence), |value: &u64| (*value).into());
        assert_eq!(
            Value::from(object).to_string(),
            r#"{"a":1,"b":null,"b_absent_reason":"this kernel does not count it","c":null,"c_absent_reason":"/proc/x: permission denied; run as root"}"#
        );
    }
}
