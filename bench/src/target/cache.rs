//! The cache side: the same seven transactions through the client library.

use super::backend::{BIT_1, VLR_LOCATION};
use super::{Answer, Outcome, Seen};
use crate::traffic::Input;
use cachetier_client::{
    Client, ClientError, Condition, Delete, Insert, Key, Operation, Read, Reason, TableRead,
    Transact, Update,
};
use cachetier_model::{Comparison, Row, Value};

#[derive(Clone)]
pub struct CacheTarget {
    client: Client,
}

impl CacheTarget {
    /// Clients share the library's connections.
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    pub async fn execute(&self, input: &Input) -> Answer {
        match self.run(input).await {
            Ok(answer) => answer,
            Err(error) if logical_miss(&error) => Answer::of(false),
            Err(error) => Answer::ended(Outcome::Failed(class(&error))),
        }
    }

    async fn run(&self, input: &Input) -> Result<Answer, ClientError> {
        match input {
            Input::GetSubscriberData { s_id } => {
                let read = Read::tables(subscriber(*s_id), vec![TableRead::whole("subscriber")]);
                let answer = self.client.read(&read).await?;
                Ok(Answer::row(answer.rows("subscriber").first().and_then(seen)))
            }
            Input::GetNewDestination { .. } => self.new_destination(input).await.map(Answer::of),
            Input::GetAccessData { s_id, ai_type } => {
                let table = TableRead {
                    table: "access_info".to_owned(),
                    columns: ["data1", "data2", "data3", "data4"].map(str::to_owned).into(),
                    conditions: vec![equal("ai_type", *ai_type)],
                };
                let answer =
                    self.client.read(&Read::tables(subscriber(*s_id), vec![table])).await?;
                Ok(Answer::of(!answer.rows("access_info").is_empty()))
            }
            _ => match self.write(input).await? {
                Some(transact) => {
                    let position = self.client.transact(&transact).await?.position;
                    Ok(Answer { position, ..Answer::of(true) })
                }
                None => Ok(Answer::of(false)),
            },
        }
    }

    async fn new_destination(&self, input: &Input) -> Result<bool, ClientError> {
        let Input::GetNewDestination { s_id, sf_type, start_time, end_time } = input else {
            return Ok(false);
        };
        let active = TableRead {
            table: "special_facility".to_owned(),
            columns: vec!["sf_type".to_owned()],
            conditions: vec![equal("sf_type", *sf_type), equal("is_active", 1)],
        };
        let forwardings = TableRead {
            table: "call_forwarding".to_owned(),
            columns: vec!["numberx".to_owned()],
            conditions: vec![
                equal("sf_type", *sf_type),
                compare("start_time", Comparison::LessOrEqual, *start_time),
                compare("end_time", Comparison::Greater, *end_time),
            ],
        };
        let read = Read::tables(subscriber(*s_id), vec![active, forwardings]);
        let answer = self.client.read(&read).await?;
        Ok(!answer.rows("special_facility").is_empty()
            && !answer.rows("call_forwarding").is_empty())
    }

    /// The transaction behind a write; an insert reads the facilities first, as the workload says.
    async fn write(&self, input: &Input) -> Result<Option<Transact>, ClientError> {
        Ok(Some(match input {
            Input::UpdateSubscriberData { s_id, bit_1, sf_type, data_a } => Transact::new(
                subscriber(*s_id),
                vec![
                    update("subscriber", vec![], "bit_1", Value::Int((*bit_1).into())),
                    update(
                        "special_facility",
                        vec![equal("sf_type", *sf_type)],
                        "data_a",
                        Value::Int((*data_a).into()),
                    ),
                ],
            ),
            Input::UpdateLocation { sub_nbr, vlr_location } => Transact::new(
                number(sub_nbr),
                vec![update("subscriber", vec![], "vlr_location", Value::Int(*vlr_location))],
            ),
            Input::InsertCallForwarding { sub_nbr, sf_type, start_time, end_time, numberx } => {
                let facilities = TableRead {
                    table: "special_facility".to_owned(),
                    columns: vec!["sf_type".to_owned()],
                    conditions: vec![],
                };
                let read = Read::tables(number(sub_nbr), vec![facilities]);
                if !self.client.read(&read).await?.found {
                    return Ok(None);
                }
                let values = vec![
                    ("sf_type".to_owned(), Value::Int((*sf_type).into())),
                    ("start_time".to_owned(), Value::Int((*start_time).into())),
                    ("end_time".to_owned(), Value::Int((*end_time).into())),
                    ("numberx".to_owned(), Value::Text(numberx.as_str().into())),
                ];
                let insert = Insert { table: "call_forwarding".to_owned(), values };
                Transact::new(number(sub_nbr), vec![Operation::Insert(insert)])
            }
            Input::DeleteCallForwarding { sub_nbr, sf_type, start_time } => Transact::new(
                number(sub_nbr),
                vec![Operation::Delete(Delete {
                    table: "call_forwarding".to_owned(),
                    conditions: vec![equal("sf_type", *sf_type), equal("start_time", *start_time)],
                    expect: Some(1),
                })],
            ),
            _ => return Ok(None),
        }))
    }
}

fn seen(row: &Row) -> Option<Seen> {
    match (row.get(BIT_1), row.get(VLR_LOCATION)) {
        (Some(Value::Int(bit_1)), Some(Value::Int(vlr_location))) => {
            Some(Seen { bit_1: *bit_1, vlr_location: *vlr_location })
        }
        _ => None,
    }
}

fn subscriber(s_id: i64) -> Key {
    Key::root([Value::Int(s_id)])
}

fn number(sub_nbr: &str) -> Key {
    Key::lookup("sub_nbr", Value::Text(sub_nbr.into()))
}

fn equal(column: &str, value: i16) -> Condition {
    compare(column, Comparison::Equal, value)
}

fn compare(column: &str, comparison: Comparison, value: i16) -> Condition {
    Condition::new(column, comparison, Value::Int(value.into()))
}

/// Sets one column of exactly one row.
fn update(table: &str, conditions: Vec<Condition>, column: &str, value: Value) -> Operation {
    Operation::Update(Update {
        table: table.to_owned(),
        conditions,
        set: vec![(column.to_owned(), value)],
        expect: Some(1),
    })
}

/// Refusals that are answers: nothing to update or delete, or an insert that breaks a key.
fn logical_miss(error: &ClientError) -> bool {
    matches!(
        error.reason(),
        Some(Reason::RowCount | Reason::PrimaryKey | Reason::ForeignKey | Reason::NotFound)
    )
}

fn class(error: &ClientError) -> String {
    match error {
        ClientError::Unreachable { .. } | ClientError::Unsent { .. } => "unreachable".to_owned(),
        ClientError::Interrupted { .. } => "interrupted".to_owned(),
        other => other.reason().map_or("client", Reason::as_str).to_owned(),
    }
}
