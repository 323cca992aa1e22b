//! Another schema through the same path: customers, orders and lines with composite, text, padded
//! and numeric keys, lookup keys that may be missing, and a value of nearly every type.

use anyhow::{Context, Result, ensure};
use cachetier_client::{
    Client, Condition, Delete, Guard, Insert, Key, Operation, Read, Reason, Source, TableRead,
    Transact, Update,
};
use cachetier_model::{Comparison, Value};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use system_tests::local::shop::{self, cached, cells, printed, text};
use system_tests::local::{TestGroup, TestGroupOptions, eventually};

const CUSTOMERS: i64 = 120;

async fn group() -> Result<TestGroup> {
    let dataset = Some(shop::dataset(CUSTOMERS)?);
    let group =
        TestGroup::start(TestGroupOptions { nodes: 2, dataset, ..Default::default() }).await?;
    group.load("first", "").await?;
    Ok(group)
}

fn person(n: i64) -> (String, String) {
    shop::keys(n).pop().unwrap_or_default()
}

fn by_person(n: i64) -> Key {
    shop::by_key(&person(n))
}

fn by_tax(country: &str, number: &str) -> Key {
    let columns = ["country", "tax_number"].map(str::to_owned).to_vec();
    Key::Lookup { columns, values: vec![text(country), text(number)] }
}

fn insert(client: &Client, table: &str, given: &[(&str, &str)]) -> Result<Operation> {
    let values = cells(client.schema(), table, given)?;
    Ok(Operation::Insert(Insert { table: table.to_owned(), values }))
}

fn when(
    client: &Client,
    table: &str,
    column: &str,
    how: Comparison,
    value: &str,
) -> Result<Condition> {
    Ok(Condition::new(column, how, shop::cell(client.schema(), table, column, value)?))
}

fn update(
    client: &Client,
    table: &str,
    conditions: Vec<Condition>,
    set: &[(&str, &str)],
) -> Result<Operation> {
    let set = cells(client.schema(), table, set)?;
    Ok(Operation::Update(Update { table: table.to_owned(), conditions, set, expect: None }))
}

fn delete(table: &str, conditions: Vec<Condition>) -> Operation {
    Operation::Delete(Delete { table: table.to_owned(), conditions, expect: None })
}

/// Nothing waits, nothing was refused, and cache and backend say the same, by their own comparison
/// and by that of every value's text.
async fn agree(group: &TestGroup, client: &Client, keys: &[(String, String)]) -> Result<()> {
    group.flushed().await?;
    for n in 0..group.nodes.len() {
        let status = group.status(n).await?;
        ensure!(status.rejects == 0 && status.problems.is_empty(), "{status:?}");
    }
    let (cache, backend) =
        (cached(client, keys).await?, printed(&group.database, client.schema()).await?);
    for ((cache, backend), table) in cache.iter().zip(&backend).zip(&client.schema().tables) {
        let differs = cache.iter().zip(backend).find(|(cache, backend)| cache != backend);
        ensure!(differs.is_none(), "{}: {differs:?}", table.name);
        ensure!(cache.len() == backend.len(), "{}: {} {}", table.name, cache.len(), backend.len());
    }
    let compared = group.compare().await?;
    let rows: usize = backend.iter().map(Vec::len).sum();
    ensure!(compared.differences == 0 && compared.not_loaded == 0, "{compared:?}");
    ensure!(compared.rows == rows as u64, "{compared:?}, {rows} rows in the backend");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d31_a_preloaded_customer_is_found_by_every_spelling_of_its_keys() -> Result<()> {
    let group = group().await?;
    let client = group.client().await?;
    agree(&group, &client, &shop::keys(CUSTOMERS)).await?;
    // the backend's equality: padding of char and scale of numeric do not count
    for (n, country, number) in [(1, "DE", "0.5"), (13, "DE ", "3.500"), (18, "é", "4.5")] {
        let answer = client.read(&Read::whole(by_tax(country, number))).await?;
        let code = &answer.rows("customer").first().context("it is found")?[1];
        ensure!(answer.source == Source::Cache && *code == text(&person(n).1), "{answer:?}");
    }
    let padded = Key::root([text("é  "), text(&person(14).1)]);
    ensure!(client.read(&Read::whole(padded)).await?.found);
    let answer = client.read(&Read::whole(Key::lookup("email", text("c14@example.org")))).await?;
    ensure!(answer.rows("orders").len() == 2 && answer.rows("order_line").len() == 4, "{answer:?}");
    let unknown = client.read(&Read::whole(by_tax("CZE", "0.5"))).await?;
    ensure!(!unknown.found, "{unknown:?}");

    let mut lines = TableRead::whole("order_line");
    lines.columns = ["line", "quantity"].map(str::to_owned).to_vec();
    lines.conditions = vec![
        when(&client, "order_line", "order_no", Comparison::Equal, "191.0")?,
        when(&client, "order_line", "quantity", Comparison::GreaterOrEqual, "1.00")?,
    ];
    let answer = client.read(&Read::tables(by_person(19), vec![lines])).await?;
    ensure!(
        answer.rows("order_line")
            == [vec![Value::Int(2), text("1.0")], vec![Value::Int(3), text("1.5")]],
        "{answer:?}"
    );
    Ok(())
}

/// An order with two lines, its number written in two ways.
fn placed(client: &Client) -> Result<Transact> {
    let order = [
        ("order_no", "9000.10"),
        ("state", "Shipped, late"),
        ("placed", "2026-11-30 12:00:00.000001+02"),
        ("waited", "1 mon -2 days"),
        ("total", "19.9"),
    ];
    let line = |line, given: &[(&'static str, &'static str)]| {
        let key = [("order_no", "9000.1"), ("line", line), ("article", "ž"), ("quantity", "2.50")];
        insert(client, "order_line", &[&key[..], given].concat())
    };
    Ok(Transact::new(
        by_person(5),
        vec![
            insert(client, "orders", &order)?,
            line("1", &[("price", "0.00005"), ("opens", "24:00:00")])?,
            line("-1", &[("discount", "NaN"), ("gift", "t"), ("due", "infinity")])?,
        ],
    ))
}

/// The same order paid, by a third spelling of its number, and its line without a price given one.
fn paid(client: &Client) -> Result<Transact> {
    let of_order = |table| when(client, table, "order_no", Comparison::Equal, "9000.100");
    let mut paid = Transact::new(
        by_person(5),
        vec![
            update(
                client,
                "orders",
                vec![of_order("orders")?],
                &[("state", "paid"), ("shipped", "2026-12-24 18:00:00"), ("waited", "NULL")],
            )?,
            update(
                client,
                "order_line",
                vec![
                    of_order("order_line")?,
                    Condition {
                        column: "price".to_owned(),
                        comparison: Comparison::IsNull,
                        values: Vec::new(),
                    },
                ],
                &[("price", "12345678.9012"), ("gift", "NULL")],
            )?,
        ],
    );
    paid.guards.push(Guard {
        table: "orders".to_owned(),
        conditions: vec![when(client, "orders", "total", Comparison::Equal, "19.90")?],
        absent: false,
    });
    Ok(paid)
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_placed_changed_and_taken_back_as_the_tables_say() -> Result<()> {
    let mut group = group().await?;
    let client = group.client().await?;
    let placed = placed(&client)?;
    ensure!(client.transact(&placed).await?.rows == [1, 1, 1]);
    let again =
        client.transact(&placed).await.expect_err("the key is taken, however it is written");
    ensure!(again.reason() == Some(Reason::PrimaryKey), "{again:?}");
    let orphan = Transact::new(
        by_person(5),
        vec![insert(
            &client,
            "order_line",
            &[("order_no", "9000.11"), ("line", "1"), ("article", "x"), ("quantity", "1")],
        )?],
    );
    let orphan = client.transact(&orphan).await.expect_err("there is no such order");
    ensure!(orphan.reason() == Some(Reason::ForeignKey), "{orphan:?}");
    let unknown = Transact::new(
        by_person(5),
        vec![Operation::Update(Update {
            table: "orders".to_owned(),
            conditions: Vec::new(),
            set: vec![("state".to_owned(), text("lost"))],
            expect: None,
        })],
    );
    let unknown = client.transact(&unknown).await.expect_err("no such label");
    ensure!(unknown.reason() == Some(Reason::Value), "{unknown:?}");

    let paid = paid(&client)?;
    ensure!(client.transact(&paid).await?.rows == [1, 1]);
    // of customer 6: an order with its lines, which go with it
    let whole = Transact::new(
        by_person(6),
        vec![delete("orders", vec![when(&client, "orders", "order_no", Comparison::Equal, "61")?])],
    );
    ensure!(client.transact(&whole).await?.rows == [1]);
    let rest = client.read(&Read::whole(by_person(6))).await?;
    ensure!(rest.rows("orders").len() == 1 && rest.rows("order_line").len() == 2, "{rest:?}");

    for node in &mut group.nodes {
        node.kill()?;
        node.start()?;
    }
    group.settled(2).await?;
    group.load("second", "").await?;
    agree(&group, &client, &shop::keys(CUSTOMERS)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_customer_comes_changes_its_lookup_keys_and_goes() -> Result<()> {
    let group = group().await?;
    let client = group.client().await?;
    let key = ("USA".to_owned(), "new one".to_owned());
    let new = |email: &'static str, tax: &'static str| {
        let given =
            [("joined", "infinity"), ("credit", "-0.005"), ("email", email), ("tax_number", tax)];
        Ok::<_, anyhow::Error>(Transact::new(
            shop::by_key(&key),
            vec![insert(&client, "customer", &given)?],
        ))
    };
    let taken = client.transact(&new("c11@example.org", "NULL")?).await;
    ensure!(taken.expect_err("another has it").reason() == Some(Reason::Unique));
    // customer 11 has this number in the same country, written with another scale
    let taken = client.transact(&new("n@example.org", "2.5000")?).await;
    ensure!(taken.expect_err("another has it").reason() == Some(Reason::Unique));
    client.transact(&new("n@example.org", "7.7700")?).await?;
    ensure!(client.read(&Read::whole(by_tax("USA", "7.77"))).await?.found);

    let set = |given: &[(&str, &str)]| {
        Ok::<_, anyhow::Error>(Transact::new(
            Key::lookup("email", text("n@example.org")),
            vec![update(&client, "customer", Vec::new(), given)?],
        ))
    };
    client.transact(&set(&[("tax_number", "NULL"), ("labels", "{a,NULL}")])?).await?;
    ensure!(!client.read(&Read::whole(by_tax("USA", "7.77"))).await?.found, "the number is free");
    client.transact(&set(&[("email", "NULL")])?).await?;
    let gone = client.read(&Read::whole(Key::lookup("email", text("n@example.org")))).await?;
    ensure!(!gone.found, "the address is free");
    let mut keys = shop::keys(CUSTOMERS);
    keys.push(key.clone());
    agree(&group, &client, &keys).await?;

    let all = |table| delete(table, Vec::new());
    let kept = Transact::new(by_person(11), vec![all("customer")]);
    let kept = client.transact(&kept).await.expect_err("it has orders");
    ensure!(kept.reason() == Some(Reason::ForeignKey), "{kept:?}");
    let gone = Transact::new(by_person(11), vec![all("orders"), all("customer")]);
    ensure!(client.transact(&gone).await?.rows == [2, 1]);
    ensure!(!client.read(&Read::whole(by_tax("USA", "2.5"))).await?.found);
    keys.retain(|k| *k != person(11));
    agree(&group, &client, &keys).await
}

#[tokio::test(flavor = "multi_thread")]
async fn random_orders_of_a_few_customers_arrive_exactly_as_the_cache_has_them() -> Result<()> {
    let group = group().await?;
    let client = group.client().await?;
    let mut random = ChaCha8Rng::seed_from_u64(41);
    let mut done = 0;
    for _ in 0..400 {
        let n = random.random_range(1..=9);
        let operations = random_operations(&client, &mut random)?;
        match client.transact(&Transact::new(by_person(n), operations)).await {
            Ok(answer) => done += usize::from(answer.position.is_some()),
            Err(error) => {
                let expected = [Reason::PrimaryKey, Reason::ForeignKey];
                ensure!(error.reason().is_some_and(|r| expected.contains(&r)), "{error:?}");
            }
        }
    }
    ensure!(done > 150, "{done} of 400 changed anything");
    eventually("a quiet queue", std::time::Duration::from_secs(60), || async {
        Ok(group.flushed().await.ok())
    })
    .await?;
    agree(&group, &client, &shop::keys(CUSTOMERS)).await
}

fn random_operations(client: &Client, random: &mut ChaCha8Rng) -> Result<Vec<Operation>> {
    let mut one = |from: &[&'static str]| {
        from.get(random.random_range(0..from.len())).copied().unwrap_or_default()
    };
    let order = one(&["1", "2.0", "3", "3.00"]);
    let line = one(&["1", "2", "-32768"]);
    let of_order = |table| when(client, table, "order_no", Comparison::Equal, order);
    let state = one(&["new", "paid", "Shipped, late"]);
    let quantity = one(&["0", "1.5", "1.50", "-2", "100000000000000000000.1"]);
    let price = one(&["NULL", "0", "0.0001", "99999999.9999"]);
    let article = one(&["", "A", "ž\\\"'", "0123456789", "QWERTY"]);
    let when_placed =
        one(&["1999-12-31 23:59:59.999999+00", "0044-03-15 00:00:00+00 BC", "infinity"]);
    let note = one(&["NULL", "", "a note", "42"]);
    let discount = one(&["0", "-0", "NaN", "1e-300", "NULL"]);
    let line_of = |operation: fn(Insert) -> Operation| {
        let given = [
            ("order_no", order),
            ("line", line),
            ("article", article),
            ("quantity", quantity),
            ("price", price),
            ("discount", discount),
        ];
        Ok::<_, anyhow::Error>(operation(Insert {
            table: "order_line".to_owned(),
            values: cells(client.schema(), "order_line", &given)?,
        }))
    };
    let new_order = || {
        let given =
            [("order_no", order), ("state", state), ("placed", when_placed), ("note", note)];
        insert(client, "orders", &given)
    };
    Ok(match one(&["order", "lines", "upsert", "change", "price", "cancel", "clear", "customer"]) {
        "order" => vec![new_order()?, line_of(Operation::Insert)?],
        "lines" => vec![line_of(Operation::Insert)?],
        "upsert" => vec![line_of(Operation::Upsert)?],
        "change" => {
            let set = [("state", state), ("note", note), ("placed", when_placed)];
            vec![update(client, "orders", vec![of_order("orders")?], &set)?]
        }
        "price" => {
            let low = when(client, "order_line", "quantity", Comparison::Less, "1.6")?;
            let set = [("price", price), ("article", article), ("discount", discount)];
            vec![update(client, "order_line", vec![low], &set)?]
        }
        "cancel" => vec![delete("orders", vec![of_order("orders")?])],
        "clear" => vec![delete("order_line", vec![of_order("order_line")?]), new_order()?],
        _ => vec![update(
            client,
            "customer",
            Vec::new(),
            &[
                ("credit", one(&["0", "1.005", "-9999999999.99"])),
                ("labels", one(&["NULL", "{}", "{x,\"y z\",NULL}"])),
                ("contact", one(&["NULL", "{\"b\": 1.00, \"a\": []}"])),
                ("rating", one(&["NULL", "0.1", "-Infinity"])),
            ],
        )?],
    })
}
