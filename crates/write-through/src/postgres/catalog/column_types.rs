//! From the catalogs' types to ours.

use super::ColumnFacts;
use cachetier_model::ColumnType;

/// Our type of a column, or `None` when it is not supported.
pub(super) fn column_type(column: &ColumnFacts) -> Option<ColumnType> {
    if column.type_kind == "e" {
        return Some(ColumnType::Enum {
            name: column.enum_name.clone(),
            labels: column.labels.clone(),
        });
    }
    if column.type_schema != "pg_catalog" || column.type_kind != "b" {
        return None;
    }
    // the catalogs name an array after its element
    if let Some(element) = column.type_name.strip_prefix('_') {
        let element = ColumnFacts { type_name: element.to_owned(), ..column.clone() };
        return Some(ColumnType::Array { element: Box::new(column_type(&element)?) });
    }
    // character types count their four bytes of length into the modifier
    let length = u32::try_from(column.modifier - 4).ok().filter(|_| column.modifier >= 4);
    Some(match column.type_name.as_str() {
        "bool" => ColumnType::Bool,
        "int2" => ColumnType::Int2,
        "int4" => ColumnType::Int4,
        "int8" => ColumnType::Int8,
        "float4" => ColumnType::Float4,
        "float8" => ColumnType::Float8,
        "numeric" => numeric(column.modifier),
        "bpchar" => match length {
            Some(length) => ColumnType::Char { length },
            // `bpchar` without a length is of any length, and compared without trailing spaces
            None => return None,
        },
        "varchar" => ColumnType::Varchar { length },
        "text" => ColumnType::Text,
        "bytea" => ColumnType::Bytea,
        "date" => ColumnType::Date,
        "time" if column.modifier < 0 || column.modifier == 6 => ColumnType::Time,
        "timestamp" if column.modifier < 0 || column.modifier == 6 => ColumnType::Timestamp,
        "timestamptz" if column.modifier < 0 || column.modifier == 6 => ColumnType::TimestampTz,
        "interval" if column.modifier < 0 => ColumnType::Interval,
        "inet" => ColumnType::Inet,
        "uuid" => ColumnType::Uuid,
        "json" => ColumnType::Json,
        "jsonb" => ColumnType::Jsonb,
        _ => return None,
    })
}

fn numeric(modifier: i32) -> ColumnType {
    if modifier < 4 {
        return ColumnType::Numeric { precision: None, scale: None };
    }
    let packed = modifier - 4;
    let precision = u16::try_from((packed >> 16) & 0xffff).ok();
    // eleven bits, signed
    let scale = i16::try_from(((packed & 0x7ff) ^ 1024) - 1024).ok();
    ColumnType::Numeric { precision, scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, modifier: i32) -> Option<ColumnType> {
        column_type(&ColumnFacts {
            type_name: name.to_owned(),
            type_schema: "pg_catalog".to_owned(),
            type_kind: "b".to_owned(),
            modifier,
            ..ColumnFacts::default()
        })
    }

    #[test]
    fn modifiers_are_read_as_the_server_packs_them() {
        assert_eq!(of("varchar", 19), Some(ColumnType::Varchar { length: Some(15) }));
        assert_eq!(of("varchar", -1), Some(ColumnType::Varchar { length: None }));
        assert_eq!(of("bpchar", 7), Some(ColumnType::Char { length: 3 }));
        let packed = |p: i32, s: i32| ((p << 16) | (s & 0x7ff)) + 4;
        let numeric = |precision, scale| Some(ColumnType::Numeric { precision, scale });
        assert_eq!(of("numeric", packed(10, 2)), numeric(Some(10), Some(2)));
        assert_eq!(of("numeric", packed(3, -2)), numeric(Some(3), Some(-2)));
        assert_eq!(of("numeric", -1), numeric(None, None));
        assert_eq!(of("interval", -1), Some(ColumnType::Interval));
        assert_eq!(of("interval", 0x7fff_0000), None, "a precision or restricted fields");
        let array = |element| Some(ColumnType::Array { element: Box::new(element) });
        assert_eq!(of("_int4", -1), array(ColumnType::Int4));
        assert_eq!(of("_varchar", 19), array(ColumnType::Varchar { length: Some(15) }));
        assert_eq!(of("_box", -1), None);
        assert_eq!(of("point", -1), None);
        assert_eq!(of("timestamp", 0), None, "fewer digits than microseconds are rounded");
    }
}
