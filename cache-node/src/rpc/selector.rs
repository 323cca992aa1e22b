//! The key of a request.

use super::errors;
use cachetier_client::convert::{ConvertError, key_values_from_wire, lookup_from_wire};
use cachetier_group::KeySelector;
use cachetier_model::{GroupSchema, LookupKey, RootKey};
use cachetier_proto::v1;
use cachetier_proto::v1::key::By;
use tonic::Status;

/// The selector of the group's calls.
pub fn selector(schema: &GroupSchema, key: Option<&v1::Key>) -> Result<KeySelector, Status> {
    let by = key.and_then(|k| k.by.as_ref()).ok_or_else(|| errors::missing("the key"))?;
    match by {
        By::Root(values) => root_key(schema, values).map(KeySelector::Root),
        By::Lookup(wire) => lookup(schema, wire),
    }
}

/// A root key.
pub fn root_key(schema: &GroupSchema, wire: &v1::KeyValues) -> Result<RootKey, Status> {
    let values = key_values_from_wire(schema, wire).map_err(|e| errors::from_convert(&e))?;
    schema.encode_root_key(&values).map_err(|e| bad_key(&e))
}

/// The selector of a lookup key.
pub fn lookup(schema: &GroupSchema, wire: &v1::LookupKey) -> Result<KeySelector, Status> {
    let (lookup, values) = lookup_from_wire(schema, wire).map_err(|e| errors::from_convert(&e))?;
    let key: LookupKey = schema.encode_lookup_key(lookup, &values).map_err(|e| bad_key(&e))?;
    Ok(KeySelector::Lookup { lookup, key })
}

fn bad_key(error: &dyn std::fmt::Display) -> Status {
    errors::from_convert(&ConvertError::Value {
        table: "the root table".to_owned(),
        column: "the key".to_owned(),
        problem: error.to_string(),
    })
}
