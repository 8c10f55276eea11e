//! Described fields: one table for the JSON of a value, the columns of its CSV tables, and its rows in
//! `docs/json.md`.

use std::borrow::Borrow;

use pagelab_model::Absence;
use serde_json::Value;

use crate::json::object::JsonObject;

/// Fields of a `T` in their order; see `fields!`.
pub struct Fields<T>(pub Vec<Field<T>>);

/// One field.
pub struct Field<T> {
    /// Its name in JSON.
    pub name: &'static str,
    /// Type of its value: `integer`, `string`, `object` …
    pub kind: &'static str,
    /// A phrase for the documentation.
    pub meaning: &'static str,
    /// Its value.
    pub getter: Getter<T>,
}

/// Value of a field, by what its absence means.
pub enum Getter<T> {
    /// Never absent.
    Always(fn(&T) -> Value),
    /// A null has this reason.
    Optional(&'static str, fn(&T) -> Value),
    /// A null is left out.
    LeftOut(fn(&T) -> Value),
    /// Its reason is known when it is read.
    Reading(fn(&T) -> Result<Value, String>),
}

/// Defines the function that returns the table of a type: an entry for each field, with its name, type,
/// absence, meaning for the documentation, and value.
macro_rules! fields {
    (@getter () |$of:ident: $row:ty| $value:expr) => { Getter::Always(|$of: $row| $value.into()) };
    (@getter (null: $reason:expr) |$of:ident: $row:ty| $value:expr) => {
        Getter::Optional($reason, |$of: $row| $value.into())
    };
    (@getter (left out) |$of:ident: $row:ty| $value:expr) => { Getter::LeftOut(|$of: $row| $value.into()) };
    (@getter (reading) |$of:ident: $row:ty| $value:expr) => { Getter::Reading(|$of: $row| $value) };
    (fn $table:ident $(<$life:lifetime>)? ($of:ident: $row:ty);
     $($name:literal: $kind:ident $(($($absent:tt)*))?, $meaning:literal => $value:expr;)*) => {
        pub(crate) fn $table $(<$life>)? () -> $crate::fields::Fields<$row> {
            use $crate::fields::{Field, Fields, Getter};
            Fields(vec![$(Field {
                name: $name,
                kind: stringify!($kind),
                meaning: $meaning,
                getter: $crate::fields::fields!(@getter ($($($absent)*)?) |$of: &$row| $value),
            }),*])
        }
    };
}
pub(crate) use fields;

impl<T> Fields<T> {
    /// Adds the fields of another table of the same value.
    pub fn and(mut self, more: Fields<T>) -> Fields<T> {
        self.0.extend(more.0);
        self
    }

    /// Adds all fields of a value to an object.
    pub fn add_to(&self, object: JsonObject, of: &T) -> JsonObject {
        let some = |value: Value| Some(value).filter(|value| !value.is_null());
        self.0.iter().fold(object, |object, field| match field.getter {
            Getter::Always(get) => object.field(field.name, get(of)),
            Getter::Optional(reason, get) => object.optional(field.name, some(get(of)), reason),
            Getter::LeftOut(get) => object.with_some(field.name, some(get(of))),
            Getter::Reading(get) => match get(of) {
                Ok(value) => object.field(field.name, value),
                Err(reason) => object.optional(field.name, None::<Value>, &reason),
            },
        })
    }

    /// Makes the object of a value.
    pub fn object(&self, of: &T) -> Value {
        self.add_to(JsonObject::new(), of).into()
    }

    /// Makes an array with the object of each value.
    pub fn array(&self, values: impl IntoIterator<Item = impl Borrow<T>>) -> Value {
        values.into_iter().map(|of| self.object(of.borrow())).collect()
    }

    /// Returns a function for the value of the field at a path, such as `interval.low`; null if it is absent.
    pub fn getter(self, path: &str) -> impl Fn(&T) -> Value + use<T> {
        let (name, inner) = path.split_once('.').unwrap_or((path, ""));
        let field = self.0.into_iter().find(|field| field.name == name);
        let getter = field.unwrap_or_else(|| panic!("no field {name}")).getter;
        let pointer = format!("/{}", inner.replace('.', "/"));
        move |of| {
            let mut value = match getter {
                Getter::Always(get) | Getter::Optional(_, get) | Getter::LeftOut(get) => get(of),
                Getter::Reading(get) => get(of).unwrap_or(Value::Null),
            };
            if pointer == "/" { value } else { value.pointer_mut(&pointer).map_or(Value::Null, Value::take) }
        }
    }

    /// Returns the rows of the documentation.
    pub fn rows(&self) -> String {
        let row = |field: &Field<T>| {
            let (kind, absent) = match field.getter {
                Getter::Always(_) => ("", String::new()),
                Getter::Optional(reason, _) => (" or null", format!("; null: {reason}")),
                Getter::LeftOut(_) => (", or left out", String::new()),
                Getter::Reading(_) => (" or null", String::new()),
            };
            format!("| `{}` | {}{kind} | {}{absent} |\n", field.name, field.kind, field.meaning)
        };
        self.0.iter().map(row).collect()
    }
}

/// Converts a reading to the value of a field.
pub fn read<T>(
    reading: &Result<T, impl Borrow<Absence>>,
    to_json: impl FnOnce(&T) -> Value,
) -> Result<Value, String> {
    reading.as_ref().map(to_json).map_err(|absence| absence.borrow().to_string())
}

#[cfg(test)]
mod tests;
