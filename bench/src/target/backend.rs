//! The direct side: PostgreSQL with prepared statements, one connection per client.
//!
//! Single-statement transactions run in autocommit; the others pipeline `BEGIN` with their first
//! statement and the last with `COMMIT`, so that the direct side pays no round trip it could save.

use super::{Answer, Outcome, Seen};
use crate::backend::connect;
use crate::traffic::Input;
use anyhow::Result;
use futures::future::try_join;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, Statement};

/// Places of two columns in a subscriber row.
pub(super) const BIT_1: usize = 2;
pub(super) const VLR_LOCATION: usize = 33;

pub struct BackendTarget {
    client: Client,
    get_subscriber: Statement,
    get_destination: Statement,
    get_access: Statement,
    update_bit: Statement,
    update_data: Statement,
    update_location: Statement,
    resolve: Statement,
    facilities: Statement,
    insert_forwarding: Statement,
    delete_forwarding: Statement,
}

impl BackendTarget {
    pub async fn open(uri: &str, schema: &str) -> Result<Self> {
        let client = connect(uri).await?;
        client.batch_execute(&format!("SET search_path TO {schema}")).await?;
        Ok(Self {
            get_subscriber: client.prepare("SELECT * FROM subscriber WHERE s_id = $1").await?,
            get_destination: client
                .prepare(
                    "SELECT c.numberx FROM special_facility f JOIN call_forwarding c \
                     ON c.s_id = f.s_id AND c.sf_type = f.sf_type \
                     WHERE f.s_id = $1 AND f.sf_type = $2 AND f.is_active = 1 \
                     AND c.start_time <= $3 AND c.end_time > $4",
                )
                .await?,
            get_access: client
                .prepare(
                    "SELECT data1, data2, data3, data4 FROM access_info \
                     WHERE s_id = $1 AND ai_type = $2",
                )
                .await?,
            update_bit: client.prepare("UPDATE subscriber SET bit_1 = $2 WHERE s_id = $1").await?,
            update_data: client
                .prepare("UPDATE special_facility SET data_a = $3 WHERE s_id = $1 AND sf_type = $2")
                .await?,
            update_location: client
                .prepare("UPDATE subscriber SET vlr_location = $2 WHERE sub_nbr = $1")
                .await?,
            resolve: client.prepare("SELECT s_id FROM subscriber WHERE sub_nbr = $1").await?,
            facilities: client
                .prepare("SELECT sf_type FROM special_facility WHERE s_id = $1")
                .await?,
            insert_forwarding: client
                .prepare("INSERT INTO call_forwarding VALUES ($1, $2, $3, $4, $5)")
                .await?,
            delete_forwarding: client
                .prepare(
                    "DELETE FROM call_forwarding WHERE s_id = \
                     (SELECT s_id FROM subscriber WHERE sub_nbr = $1) \
                     AND sf_type = $2 AND start_time = $3",
                )
                .await?,
            client,
        })
    }

    pub async fn execute(&self, input: &Input) -> Answer {
        let answered = match input {
            Input::GetSubscriberData { s_id } => self.subscriber(*s_id).await.map(Answer::row),
            _ => self.run(input).await.map(Answer::of),
        };
        match answered {
            Ok(answer) => answer,
            Err(error) if refused_insert(&error) => Answer::of(false),
            Err(error) => Answer::ended(Outcome::Failed(class(&error))),
        }
    }

    async fn subscriber(&self, s_id: i64) -> Result<Option<Seen>, Error> {
        let row = self.client.query_opt(&self.get_subscriber, &[&s_id]).await?;
        row.map(|row| {
            let bit_1: i16 = row.try_get(BIT_1)?;
            let vlr_location = row.try_get(VLR_LOCATION)?;
            Ok(Seen { bit_1: bit_1.into(), vlr_location })
        })
        .transpose()
    }

    async fn run(&self, input: &Input) -> Result<bool, Error> {
        let client = &self.client;
        match input {
            Input::GetSubscriberData { .. } => Ok(false),
            Input::GetNewDestination { s_id, sf_type, start_time, end_time } => {
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                    [s_id, sf_type, start_time, end_time];
                Ok(!client.query(&self.get_destination, &parameters).await?.is_empty())
            }
            Input::GetAccessData { s_id, ai_type } => {
                Ok(!client.query(&self.get_access, &[s_id, ai_type]).await?.is_empty())
            }
            Input::UpdateSubscriberData { s_id, bit_1, sf_type, data_a } => {
                self.update_subscriber(*s_id, *bit_1, *sf_type, *data_a).await
            }
            Input::UpdateLocation { sub_nbr, vlr_location } => {
                Ok(client.execute(&self.update_location, &[sub_nbr, vlr_location]).await? == 1)
            }
            Input::InsertCallForwarding { .. } => self.insert(input).await,
            Input::DeleteCallForwarding { sub_nbr, sf_type, start_time } => {
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                    [sub_nbr, sf_type, start_time];
                Ok(client.execute(&self.delete_forwarding, &parameters).await? == 1)
            }
        }
    }

    async fn update_subscriber(
        &self,
        s_id: i64,
        bit_1: i16,
        sf_type: i16,
        data_a: i16,
    ) -> Result<bool, Error> {
        let client = &self.client;
        let (_, facilities) = try_join(
            client.batch_execute("BEGIN"),
            client.execute(&self.update_data, &[&s_id, &sf_type, &data_a]),
        )
        .await?;
        if facilities == 0 {
            client.batch_execute("ROLLBACK").await?;
            return Ok(false);
        }
        let (rows, ()) = try_join(
            client.execute(&self.update_bit, &[&s_id, &bit_1]),
            client.batch_execute("COMMIT"),
        )
        .await?;
        Ok(rows == 1)
    }

    async fn insert(&self, input: &Input) -> Result<bool, Error> {
        let Input::InsertCallForwarding { sub_nbr, sf_type, start_time, end_time, numberx } = input
        else {
            return Ok(false);
        };
        let client = &self.client;
        let (_, subscriber) =
            try_join(client.batch_execute("BEGIN"), client.query_opt(&self.resolve, &[sub_nbr]))
                .await?;
        let Some(subscriber) = subscriber else {
            client.batch_execute("ROLLBACK").await?;
            return Ok(false);
        };
        let s_id: i64 = subscriber.get(0);
        client.query(&self.facilities, &[&s_id]).await?;
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&s_id, sf_type, start_time, end_time, numberx];
        // A refused insert aborts the transaction; the COMMIT behind it then rolls back.
        let (inserted, committed) = futures::join!(
            client.execute(&self.insert_forwarding, &parameters),
            client.batch_execute("COMMIT"),
        );
        committed?;
        Ok(inserted? == 1)
    }
}

fn refused_insert(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(code) if *code == SqlState::FOREIGN_KEY_VIOLATION || *code == SqlState::UNIQUE_VIOLATION
    )
}

fn class(error: &Error) -> String {
    match error.code() {
        Some(code) => format!("SQLSTATE {}", code.code()),
        None => "connection".to_owned(),
    }
}
