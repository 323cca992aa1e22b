//! The resource definition: what `operator crd` prints and the repository keeps.

use crate::v1alpha1::CacheGroup;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

/// The resource definition of `CacheGroup`.
///
/// Nothing in it is nullable: the API server then drops a null before it applies defaults and rules,
/// so that `memory: null` means the same as leaving `memory` out.
pub fn cache_group() -> CustomResourceDefinition {
    let mut definition = CacheGroup::crd();
    for version in &mut definition.spec.versions {
        if let Some(schema) =
            version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            refuse_null(schema);
        }
    }
    definition
}

fn refuse_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.properties.iter_mut().flat_map(|fields| fields.values_mut()).for_each(refuse_null);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => refuse_null(item),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(refuse_null),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn visit(value: &Value, path: &str, check: &mut dyn FnMut(&Value, &str)) {
        check(value, path);
        match value {
            Value::Array(items) => items.iter().for_each(|item| visit(item, path, check)),
            Value::Object(fields) => {
                for (name, field) in fields {
                    // defaults are values, not schema
                    if name != "default" {
                        visit(field, &format!("{path}.{name}"), check);
                    }
                }
            }
            _ => {}
        }
    }

    #[test]
    fn o34_the_definition_has_nothing_empty_that_a_server_would_drop() {
        visit(&serde_json::to_value(cache_group()).unwrap(), "", &mut |value, path| {
            assert!(!value.is_null(), "null at {path}");
            assert!(
                value.as_array().is_none_or(|items| !items.is_empty()),
                "empty array at {path}"
            );
        });
    }

    #[test]
    fn o35_nothing_is_nullable_so_that_null_means_left_out() {
        visit(&serde_json::to_value(cache_group()).unwrap(), "", &mut |_, path| {
            assert!(!path.ends_with(".nullable"), "{path}");
        });
    }

    #[test]
    fn every_list_and_text_of_the_spec_is_bounded_so_that_rules_have_a_bounded_cost() {
        let definition = serde_json::to_value(cache_group()).unwrap();
        let spec =
            definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
        visit(spec, "spec", &mut |value, path| {
            // tolerations are Kubernetes' own type
            if value["type"] == "array" && !path.contains("tolerations") {
                assert!(value["maxItems"].is_number(), "no maxItems at {path}");
            }
        });
    }
}
