//! Building JSON objects in which nothing is absent without a reason.

use pagelab_model::{Absence, Reading};
use serde_json::{Map, Value};

/// An object under construction; fields keep the order in which they were put.
#[derive(Debug, Default)]
pub struct Object(Map<String, Value>);

impl Object {
    /// An object without fields.
    pub fn new() -> Object {
        Object::default()
    }

    /// Puts a value that is there.
    pub fn put(mut self, name: &str, value: impl Into<Value>) -> Object {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Puts a value, or null and `<name>_absent_reason`.
    pub fn option(self, name: &str, value: Option<impl Into<Value>>, reason: &str) -> Object {
        match value {
            Some(value) => self.put(name, value),
            None => self.null(name, reason),
        }
    }

    /// Puts what was read, or null and the reason of its absence.
    pub fn reading<T>(self, name: &str, reading: &Reading<T>, show: impl FnOnce(&T) -> Value) -> Object {
        match reading {
            Ok(value) => self.put(name, show(value)),
            Err(absence) => self.null(name, &reason(absence)),
        }
    }

    fn null(self, name: &str, reason: &str) -> Object {
        self.put(name, Value::Null).put(&format!("{name}_absent_reason"), reason)
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Value {
        Value::Object(object.0)
    }
}

/// Source, reason and way out of an absence, in one string.
pub fn reason(absence: &Absence) -> String {
    let way_out = absence.way_out.as_ref().map_or(String::new(), |way_out| format!("; {way_out}"));
    format!("{}: {}{way_out}", absence.source, absence.reason())
}

/// An array of what `show` makes of each item.
pub fn array<T>(items: &[T], mut show: impl FnMut(&T) -> Object) -> Value {
    Value::Array(items.iter().map(|item| show(item).into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::AbsentWhy;

    #[test]
    fn null_never_stands_without_its_reason() {
        let absence = Absence::new("/proc/x", AbsentWhy::NotPermitted, "").or("run as root");
        let object = Object::new()
            .put("a", 1)
            .option("b", None::<u64>, "this kernel does not count it")
            .reading("c", &Err(absence), |value: &u64| (*value).into());
        assert_eq!(
            Value::from(object).to_string(),
            r#"{"a":1,"b":null,"b_absent_reason":"this kernel does not count it","c":null,"c_absent_reason":"/proc/x: permission denied; run as root"}"#
        );
    }
}
