//! The four tables of the subscriber schema, and a small population that depends on nothing but the
//! subscriber's number.

use super::group::Dataset;
use anyhow::Result;
use cachetier_client::{Condition, Key, Operation, Transact, Update};
use cachetier_model::Value;
use tokio_postgres::Client;

const TABLES: &str = "
CREATE TABLE subscriber (
  s_id bigint PRIMARY KEY, sub_nbr varchar(15) NOT NULL UNIQUE,
  bit_1 smallint, hex_1 smallint, byte2_1 smallint,
  msc_location bigint, vlr_location bigint);
CREATE TABLE access_info (
  s_id bigint REFERENCES subscriber, ai_type smallint, data1 smallint, data2 smallint,
  data3 char(3), data4 char(5), PRIMARY KEY (s_id, ai_type));
CREATE TABLE special_facility (
  s_id bigint REFERENCES subscriber, sf_type smallint, is_active smallint,
  error_cntrl smallint, data_a smallint, data_b char(5), PRIMARY KEY (s_id, sf_type));
CREATE TABLE call_forwarding (
  s_id bigint, sf_type smallint, start_time smallint, end_time smallint, numberx varchar(15),
  PRIMARY KEY (s_id, sf_type, start_time),
  FOREIGN KEY (s_id, sf_type) REFERENCES special_facility (s_id, sf_type));
";

const CONFIG: &str = "
  - {name: subscriber, lookupKeys: [[sub_nbr]]}
  - {name: access_info, parent: subscriber}
  - {name: special_facility, parent: subscriber}
  - {name: call_forwarding, parent: special_facility}
";

pub fn dataset(subscribers: i64) -> Dataset {
    Dataset {
        sql: format!("{TABLES}{}", population(1, subscribers)),
        backend_schema: "public".to_owned(),
        config: CONFIG.to_owned(),
    }
}

/// Subscribers `first..=last`: two access rows, one facility, one forwarding each.
pub async fn populate(client: &Client, first: i64, last: i64) -> Result<()> {
    Ok(client.batch_execute(&population(first, last)).await?)
}

fn population(first: i64, last: i64) -> String {
    format!(
        "INSERT INTO subscriber SELECT n, lpad(n::text, 15, '0'), 0, n % 16, n % 256, n * 7, 0
           FROM generate_series({first}, {last}) n;
         INSERT INTO access_info SELECT n, t, n % 256, t, 'ABC', 'ABCDE'
           FROM generate_series({first}, {last}) n, generate_series(1, 2) t;
         INSERT INTO special_facility SELECT n, 1, 1, 0, n % 256, 'FGHIJ'
           FROM generate_series({first}, {last}) n;
         INSERT INTO call_forwarding SELECT n, 1, 8, 12, lpad(n::text, 15, '9')
           FROM generate_series({first}, {last}) n;"
    )
}

pub fn by_id(id: i64) -> Key {
    Key::root([Value::Int(id)])
}

pub fn number(id: i64) -> String {
    format!("{id:015}")
}

pub fn by_number(id: i64) -> Key {
    Key::lookup("sub_nbr", Value::Text(number(id).into()))
}

/// Sets one subscriber's `vlr_location`.
pub fn set_vlr(key: Key, value: i64) -> Transact {
    let update = Update {
        table: "subscriber".to_owned(),
        conditions: Vec::<Condition>::new(),
        set: vec![("vlr_location".to_owned(), Value::Int(value))],
        expect: Some(1),
    };
    Transact::new(key, vec![Operation::Update(update)])
}
