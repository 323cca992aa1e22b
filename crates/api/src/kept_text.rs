//! What amounts have in common: they are equal by value, and written back as the user wrote them.

/// For a struct with the user's `text` and the value it stands for in the named field.
macro_rules! kept_text {
    ($amount:ident, $value:ident) => {
        impl PartialEq for $amount {
            fn eq(&self, other: &Self) -> bool {
                self.$value == other.$value
            }
        }

        impl Eq for $amount {}

        impl std::fmt::Display for $amount {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl serde::Serialize for $amount {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.text)
            }
        }
    };
}

/// The text of an amount in a manifest, where a bare number is one too.
pub(crate) fn text_or_number<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(serde_json::Number),
        Text(String),
    }
    use serde::Deserialize;
    Ok(match Form::deserialize(deserializer)? {
        Form::Number(number) => number.to_string(),
        Form::Text(text) => text,
    })
}

pub(crate) use kept_text;
