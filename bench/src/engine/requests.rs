//! The HLR tables, subscribers and inputs in the engine's own types.

use crate::population::Subscriber;
use crate::population::tables::columns;
use crate::traffic::Input;
use cachetier_model::schema::{LookupSchema, ParentKey, ReferentialAction};
use cachetier_model::{
    Column, ColumnId, ColumnType, Comparison, Condition, GroupSchema, Instance, LookupKey,
    Operation, ReadPlan, RootKey, TableId, TableRead, TableSchema, Transaction, Value,
};

const SUBSCRIBER: TableId = 0;
const ACCESS_INFO: TableId = 1;
const SPECIAL_FACILITY: TableId = 2;
const CALL_FORWARDING: TableId = 3;
const BIT_1: ColumnId = 2;
const VLR_LOCATION: ColumnId = 33;

/// Whom a request is for.
pub(super) enum Whom {
    Root(RootKey),
    Number(LookupKey),
}

pub(super) enum Request {
    Read(ReadPlan),
    Write(Transaction),
}

/// The four tables as the backend's catalogs describe them.
pub(super) fn schema() -> GroupSchema {
    let child = |name: &str, key: usize| ParentKey {
        constraint: format!("{name}_fkey"),
        columns: (0..key).collect(),
        parent_columns: (0..key).collect(),
        on_delete: ReferentialAction::NoAction,
    };
    let table = |name: &str, parent: Option<(TableId, usize)>, key: usize| TableSchema {
        name: name.to_owned(),
        parent: parent.map(|(id, _)| id),
        columns: columns(name).iter().map(|column| column_of(name, column)).collect(),
        primary_key: (0..key).collect(),
        primary_key_constraint: format!("{name}_pkey"),
        root_key: vec![0],
        parent_key: parent.map(|(_, columns)| child(name, columns)),
        unique_keys: Vec::new(),
        external_keys: Vec::new(),
    };
    GroupSchema {
        backend_schema: "public".to_owned(),
        tables: vec![
            table("subscriber", None, 1),
            table("access_info", Some((SUBSCRIBER, 1)), 2),
            table("special_facility", Some((SUBSCRIBER, 1)), 2),
            table("call_forwarding", Some((SPECIAL_FACILITY, 2)), 3),
        ],
        lookups: vec![LookupSchema { columns: vec![1], constraint: "sub_nbr_key".to_owned() }],
    }
}

fn column_of(table: &str, name: &str) -> Column {
    let column_type = match name {
        "s_id" | "msc_location" | "vlr_location" => ColumnType::Int8,
        "sub_nbr" | "numberx" => ColumnType::Varchar { length: Some(15) },
        "data3" if table == "access_info" => ColumnType::Char { length: 3 },
        "data4" | "data_b" => ColumnType::Char { length: 5 },
        _ => ColumnType::Int2,
    };
    Column {
        name: name.to_owned(),
        column_type,
        not_null: true,
        has_default: false,
        orders_by_bytes: false,
    }
}

fn int(value: impl Into<i64>) -> Value {
    Value::Int(value.into())
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

pub(super) fn instance(s: &Subscriber) -> Instance {
    let id = || int(s.s_id);
    let mut root = vec![id(), text(&s.sub_nbr)];
    root.extend(s.bits.iter().chain(&s.hexes).chain(&s.bytes).map(|v| int(*v)));
    root.extend([int(s.msc_location), int(s.vlr_location)]);
    let access = s.access.iter().map(|a| {
        vec![id(), int(a.ai_type), int(a.data1), int(a.data2), text(&a.data3), text(&a.data4)]
    });
    let facilities = s.facilities.iter().map(|f| {
        let active = i64::from(f.is_active);
        vec![id(), int(f.sf_type), int(active), int(f.error_cntrl), int(f.data_a), text(&f.data_b)]
    });
    let forwardings = s.facilities.iter().flat_map(|f| {
        f.forwardings.iter().map(|c| {
            vec![id(), int(f.sf_type), int(c.start_time), int(c.end_time), text(&c.numberx)]
        })
    });
    Instance {
        tables: vec![vec![root], access.collect(), facilities.collect(), forwardings.collect()],
    }
}

pub(super) fn root_key(s_id: i64) -> RootKey {
    // an integer is never NULL, the only thing an encoding refuses
    RootKey::encode(&[int(s_id)]).unwrap_or_else(|_| RootKey::from_bytes(Default::default()))
}

fn number(sub_nbr: &str) -> LookupKey {
    LookupKey::encode(&[text(sub_nbr)])
        .unwrap_or_else(|_| LookupKey::from_bytes(Default::default()))
}

fn when(column: ColumnId, comparison: Comparison, value: impl Into<i64>) -> Condition {
    Condition { column, comparison, values: vec![int(value)] }
}

fn read(tables: Vec<TableRead>) -> Request {
    Request::Read(ReadPlan { tables })
}

fn write(operations: Vec<Operation>) -> Request {
    Request::Write(Transaction { guards: Vec::new(), operations })
}

/// One transaction of the workload as one call of the engine.
pub(super) fn request(input: &Input) -> (Whom, Request) {
    use Comparison::{Equal, Greater, LessOrEqual};
    match input {
        Input::GetSubscriberData { s_id } => (
            Whom::Root(root_key(*s_id)),
            read(vec![TableRead { table: SUBSCRIBER, columns: vec![], conditions: vec![] }]),
        ),
        Input::GetNewDestination { s_id, sf_type, start_time, end_time } => {
            let active = vec![when(1, Equal, *sf_type), when(2, Equal, 1)];
            let covers = vec![
                when(1, Equal, *sf_type),
                when(2, LessOrEqual, *start_time),
                when(3, Greater, *end_time),
            ];
            let facility =
                TableRead { table: SPECIAL_FACILITY, columns: vec![1], conditions: active };
            let forwarding =
                TableRead { table: CALL_FORWARDING, columns: vec![4], conditions: covers };
            (Whom::Root(root_key(*s_id)), read(vec![facility, forwarding]))
        }
        Input::GetAccessData { s_id, ai_type } => {
            let conditions = vec![when(1, Equal, *ai_type)];
            let table = TableRead { table: ACCESS_INFO, columns: vec![2, 3, 4, 5], conditions };
            (Whom::Root(root_key(*s_id)), read(vec![table]))
        }
        Input::UpdateSubscriberData { s_id, bit_1, sf_type, data_a } => {
            let bit = update(SUBSCRIBER, vec![], BIT_1, int(*bit_1));
            let facility =
                update(SPECIAL_FACILITY, vec![when(1, Equal, *sf_type)], 4, int(*data_a));
            (Whom::Root(root_key(*s_id)), write(vec![bit, facility]))
        }
        Input::UpdateLocation { sub_nbr, vlr_location } => (
            Whom::Number(number(sub_nbr)),
            write(vec![update(SUBSCRIBER, vec![], VLR_LOCATION, int(*vlr_location))]),
        ),
        Input::InsertCallForwarding { sub_nbr, sf_type, start_time, end_time, numberx } => {
            // the subscriber's id goes in once the number is resolved
            let row =
                vec![Value::Null, int(*sf_type), int(*start_time), int(*end_time), text(numberx)];
            let insert = Operation::Insert { table: CALL_FORWARDING, row };
            (Whom::Number(number(sub_nbr)), write(vec![insert]))
        }
        Input::DeleteCallForwarding { sub_nbr, sf_type, start_time } => {
            let conditions = vec![when(1, Equal, *sf_type), when(2, Equal, *start_time)];
            let delete = Operation::Delete { table: CALL_FORWARDING, conditions, expect: Some(1) };
            (Whom::Number(number(sub_nbr)), write(vec![delete]))
        }
    }
}

fn update(table: TableId, conditions: Vec<Condition>, column: ColumnId, value: Value) -> Operation {
    Operation::Update { table, conditions, set: vec![(column, value)], expect: Some(1) }
}

/// Fills the root key into inserted rows.
pub(super) fn complete(request: &mut Request, root: &RootKey) {
    let Request::Write(transaction) = request else { return };
    for operation in &mut transaction.operations {
        if let Operation::Insert { row, .. } = operation
            && let (Some(cell), Ok(key)) = (row.first_mut(), root.decode())
        {
            *cell = key.into_iter().next().unwrap_or(Value::Null);
        }
    }
}
