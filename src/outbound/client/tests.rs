use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse, Redirect};
use axum::routing::{any, get};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream;
use http::HeaderValue;
use tokio::io::AsyncReadExt as _;

use super::*;
use crate::outbound::address::AddressClass;
use crate::outbound::policy::HostPattern;

const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    read: Duration::from_millis(300),
};

/// Answers from a table; counts look-ups.
#[derive(Default)]
struct Table {
    names: HashMap<String, Vec<IpAddr>>,
    lookups: Arc<AtomicUsize>,
}

impl Table {
    fn of(entries: &[(&str, &[&str])]) -> Self {
        let names = entries
            .iter()
            .map(|(name, addresses)| {
                let addresses = addresses.iter().map(|a| a.parse().expect("address"));
                ((*name).to_owned(), addresses.collect())
            })
            .collect();
        Self {
            names,
            lookups: Arc::default(),
        }
    }
}

impl Resolve for Table {
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let answer = self.names.get(&host).cloned();
        async move { answer.ok_or_else(|| io::Error::other("no such name")) }.boxed()
    }
}

fn client(allow_loopback: bool, table: Table) -> Client {
    let policy = Policy {
        allow_loopback,
        allowed_hosts: None,
    };
    Client::with_resolver(policy, TIMEOUTS, Arc::new(table)).expect("a client")
}

fn limits(body: u64) -> Limits {
    Limits {
        body,
        overflow: Overflow::Refuse,
        total: Duration::from_secs(10),
        pace: None,
    }
}

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn endless() -> Body {
    Body::from_stream(stream::repeat_with(|| {
        Ok::<_, io::Error>(Bytes::from_static(&[0; 8192]))
    }))
}

fn site() -> Router {
    Router::new()
        .route("/ok", get(|| async { "hello" }))
        .route("/gone", get(|| async { StatusCode::GONE }))
        .route("/partial", get(|| async { (StatusCode::ACCEPTED, "x") }))
        .route("/broken", get(|| async { StatusCode::BAD_GATEWAY }))
        .route("/endless", get(|| async { endless() }))
        .route("/announces", get(announces))
        .route("/no-location", get(|| async { StatusCode::FOUND }))
        .route("/loop", get(|| async { Redirect::temporary("/loop") }))
        .route(
            "/hops/{n}",
            get(|Path(n): Path<usize>| async move {
                match n {
                    0 => "arrived".into_response(),
                    n => Redirect::permanent(&format!("/hops/{}", n - 1)).into_response(),
                }
            }),
        )
        .route(
            "/to",
            any(|query: axum::extract::RawQuery| async move {
                (
                    StatusCode::TEMPORARY_REDIRECT,
                    [(LOCATION, query.0.unwrap_or_default())],
                )
            }),
        )
        .route(
            "/see-other",
            any(|| async { (StatusCode::SEE_OTHER, [(LOCATION, "/echo")]) }),
        )
        .route(
            "/same",
            any(|| async { (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "/echo")]) }),
        )
        .route("/echo", any(echo))
        .route(
            "/stalls",
            get(|| async {
                let first = stream::once(async { Ok::<_, io::Error>(Bytes::from_static(b"x")) });
                Body::from_stream(futures::StreamExt::chain(first, stream::pending()))
            }),
        )
        .route(
            "/trickles",
            get(|| async {
                Body::from_stream(stream::unfold((), |()| async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Some((Ok::<_, io::Error>(Bytes::from_static(b"x")), ()))
                }))
            }),
        )
}

/// Promises a terabyte and sends nothing.
async fn announces() -> impl IntoResponse {
    let silence = stream::pending::<io::Result<Bytes>>();
    ([(CONTENT_LENGTH, "1099511627776")], Body::from_stream(silence))
}

async fn echo(method: Method, headers: HeaderMap, body: Bytes) -> String {
    let header = |name: &str| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("-")
            .to_owned()
    };
    format!(
        "{method} body={} authorization={} user-agent={}",
        String::from_utf8_lossy(&body),
        header("authorization"),
        header("user-agent")
    )
}

async fn fetch(client: &Client, url: &str) -> Result<Bytes, Error> {
    client.fetch(url, &limits(1 << 16)).await
}

fn refusal(result: Result<Bytes, Error>) -> (Refusal, Option<String>) {
    match result {
        Err(Error::Refused { refusal, from, .. }) => (refusal, from.map(|u| u.to_string())),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn downloads_where_loopback_is_open() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let body = fetch(&client, &format!("http://{address}/ok")).await;
    assert_eq!(body.expect("a body"), "hello");
}

#[tokio::test]
async fn a_literal_address_is_refused_unasked() {
    let address = serve(site()).await;
    let client = client(false, Table::default());
    let (found, from) = refusal(fetch(&client, &format!("http://{address}/ok")).await);
    assert_eq!(
        found,
        Refusal::Address {
            address: address.ip(),
            class: AddressClass::Loopback
        }
    );
    assert_eq!(from, None);
}

#[tokio::test]
async fn a_name_that_resolves_to_a_forbidden_address_is_refused() {
    let cases = [
        ("loop.example", "127.0.0.1", AddressClass::Loopback),
        ("meta.example", "169.254.169.254", AddressClass::LinkLocal),
        ("six.example", "::1", AddressClass::Loopback),
        ("mapped.example", "::ffff:169.254.169.254", AddressClass::LinkLocal),
        ("zero.example", "0.0.0.0", AddressClass::Unspecified),
        ("nat64.example", "64:ff9b::a9fe:a9fe", AddressClass::Embedded),
        ("azure.example", "168.63.129.16", AddressClass::Metadata),
    ];
    for (host, address, class) in cases {
        let client = client(false, Table::of(&[(host, &[address])]));
        let (found, _) = refusal(fetch(&client, &format!("http://{host}/x?token=s3cret")).await);
        assert_eq!(
            found,
            Refusal::Resolved {
                host: host.to_owned(),
                address: address.parse().expect("address"),
                class
            }
        );
    }
}

#[tokio::test]
async fn one_forbidden_address_among_good_ones_is_refused() {
    let table = Table::of(&[("mixed.example", &["192.0.2.1", "127.0.0.1"])]);
    let (found, _) = refusal(fetch(&client(false, table), "http://mixed.example/").await);
    assert!(matches!(found, Refusal::Resolved { .. }));
}

/// Rules: run 12 dial
#[tokio::test]
async fn the_checked_answer_is_the_one_dialled() {
    let address = serve(site()).await;
    let table = Table::of(&[("app.example", &["127.0.0.1"])]);
    let lookups = Arc::clone(&table.lookups);
    let client = client(true, table);
    let url = format!("http://app.example:{}/ok", address.port());
    assert_eq!(fetch(&client, &url).await.expect("a body"), "hello");
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn open_loopback_opens_nothing_else() {
    let table = Table::of(&[("meta.example", &["169.254.169.254"])]);
    let client = client(true, table);
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
        "http://meta.example/",
    ] {
        refusal(fetch(&client, url).await);
    }
}

/// Rules: run 12 dial
#[tokio::test]
async fn each_redirect_hop_is_checked() {
    let address = serve(site()).await;
    let table = Table::of(&[("app.example", &["127.0.0.1"]), ("meta.example", &["169.254.169.254"])]);
    let client = client(true, table);
    let start = format!("http://app.example:{}/to", address.port());
    for target in [
        "http://169.254.169.254/latest/meta-data/",
        "http://0xa9fea9fe/",
        "http://[::ffff:a9fe:a9fe]/",
        "http://[fe80::1]/",
        "http://meta.example/",
        "file:///etc/passwd",
        "ftp://app.example/",
    ] {
        let (_, from) = refusal(fetch(&client, &format!("{start}?{target}")).await);
        assert_eq!(from.as_deref(), Some(start.as_str()), "{target}");
    }
}

#[tokio::test]
async fn ten_redirects_are_followed_and_no_more() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let ten = fetch(&client, &format!("http://{address}/hops/10")).await;
    assert_eq!(ten.expect("a body"), "arrived");
    for path in ["hops/11", "loop"] {
        let error = fetch(&client, &format!("http://{address}/{path}"))
            .await
            .expect_err("too many");
        assert!(matches!(error, Error::TooManyRedirects { limit: 10, .. }));
        assert!(!error.is_terminal());
    }
}

/// Rules: run 12 status
#[tokio::test]
async fn only_200_counts_for_a_download() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let get = async |path: &str| {
        fetch(&client, &format!("http://{address}/{path}"))
            .await
            .expect_err("must fail")
    };
    assert!(matches!(get("missing").await, Error::NotFound { status, .. } if status == 404));
    assert!(matches!(get("gone").await, Error::NotFound { status, .. } if status == 410));
    assert!(matches!(get("partial").await, Error::Status { status, .. } if status == 202));
    assert!(matches!(get("broken").await, Error::Status { status, .. } if status == 502));
    assert!(matches!(get("no-location").await, Error::BadRedirect { status, .. } if status == 302));
}

/// Rules: run 12 body
#[tokio::test]
async fn the_size_cap_holds_with_and_without_an_announced_length() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let ok = format!("http://{address}/ok");
    let exact = client.fetch(&ok, &limits(5)).await;
    assert_eq!(exact.expect("exactly at the cap"), "hello");
    let error = client.fetch(&ok, &limits(4)).await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { limit: 4, .. }));
    assert!(error.is_terminal());

    for path in ["endless", "announces"] {
        let begun = Instant::now();
        let error = fetch(&client, &format!("http://{address}/{path}"))
            .await
            .expect_err("too large");
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test]
async fn a_truncating_request_ends_at_the_cap() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let request = Request::get(format!("http://{address}/endless").parse().expect("URL"));
    let caps = Limits {
        overflow: Overflow::Truncate,
        ..limits(10_000)
    };
    let response = client.send(request, &caps).await.expect("a response");
    assert_eq!(response.body.len(), 10_000);
}

/// Rules: run 12 timeout
#[tokio::test]
async fn silence_ends_at_the_read_timeout() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let error = fetch(&client, &format!("http://{address}/stalls"))
        .await
        .expect_err("a timeout");
    assert!(
        matches!(error, Error::Timeout { phase: Phase::Read, after, .. } if after == TIMEOUTS.read),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_handshake_that_never_answers_ends_at_the_connect_timeout() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let timeouts = Timeouts {
        connect: Duration::from_millis(200),
        read: Duration::from_secs(60),
    };
    let policy = Policy {
        allow_loopback: true,
        allowed_hosts: None,
    };
    let client = Client::with_resolver(policy, timeouts, Arc::new(Table::default()));
    let error = fetch(&client.expect("a client"), &format!("https://{address}/"))
        .await
        .expect_err("a timeout");
    assert!(
        matches!(error, Error::Timeout { phase: Phase::Connect, after, .. } if after == timeouts.connect),
        "{error:?}"
    );
    assert!(!error.is_terminal());
}

/// Rules: run 12 timeout
#[tokio::test]
async fn the_total_cap_covers_everything() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let caps = Limits {
        total: Duration::from_millis(100),
        ..limits(1 << 40)
    };
    let error = client
        .fetch(&format!("http://{address}/endless"), &caps)
        .await
        .expect_err("a timeout");
    assert!(
        matches!(
            error,
            Error::Timeout {
                phase: Phase::Total,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        format!("http://{address}/endless: not finished after 0.1 s")
    );
}

#[tokio::test]
async fn messages_leave_out_secrets_of_the_url() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let closed = listener.local_addr().expect("an address");
    drop(listener);
    let address = serve(site()).await;
    let client = client(true, Table::default());
    for url in [
        format!("http://user:hunter2@{address}/missing?token=hunter2#hunter2"),
        format!("http://user:hunter2@{closed}/x?token=hunter2"),
        "http://user:hunter2@169.254.169.254/x?token=hunter2".to_owned(),
        "http://user:hunter2@unknown.example/x?token=hunter2".to_owned(),
        "http://user:hunter2@[half/x?token=hunter2".to_owned(),
        format!("http://{address}/to?http://user:hunter2@169.254.0.1/?hunter2"),
    ] {
        let error = fetch(&client, &url).await.expect_err("must fail");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn an_unknown_name_and_a_closed_port_are_transient() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let closed = listener.local_addr().expect("an address");
    drop(listener);
    let client = client(true, Table::of(&[("empty.example", &[])]));
    for host in ["unknown.example", "empty.example"] {
        let error = fetch(&client, &format!("http://{host}/"))
            .await
            .expect_err("no address");
        assert!(
            matches!(&error, Error::Unresolvable { host: h, .. } if h == host),
            "{error:?}"
        );
        assert!(!error.is_terminal());
    }
    let error = fetch(&client, &format!("http://{closed}/")).await.expect_err("refused");
    assert!(matches!(error, Error::Transport { .. }), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn post_is_sent_again_only_where_the_redirect_says_so() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let post = async |path: &str, secret: bool| {
        let mut request = Request::get(format!("http://{address}/{path}").parse().expect("URL"));
        request.method = Method::POST;
        request.body = Some(Bytes::from_static(b"payload"));
        request
            .headers
            .insert(AUTHORIZATION, HeaderValue::from_static("Bearer t"));
        request.secret = secret;
        client
            .send(request, &limits(4096))
            .await
            .map(|r| String::from_utf8(r.body.to_vec()).expect("text"))
    };
    let agent = format!("user-agent={USER_AGENT}");
    assert_eq!(
        post("same", true).await.expect("a response"),
        format!("POST body=payload authorization=Bearer t {agent}")
    );
    assert_eq!(
        post("see-other", false).await.expect("a response"),
        format!("GET body= authorization=Bearer t {agent}")
    );
}

#[tokio::test]
async fn secrets_stay_with_the_host_they_were_meant_for() {
    let (first, second) = (serve(site()).await, serve(site()).await);
    let client = client(true, Table::default());
    let send = async |secret: bool| {
        let url = format!("http://{first}/to?http://{second}/echo");
        let mut request = Request::get(url.parse().expect("URL"));
        request
            .headers
            .insert(AUTHORIZATION, HeaderValue::from_static("Bearer t"));
        request.secret = secret;
        client.send(request, &limits(4096)).await
    };
    let plain = send(false).await.expect("a response");
    assert!(String::from_utf8_lossy(&plain.body).contains("authorization=- "));
    let error = send(true).await.expect_err("refused");
    assert!(matches!(
        error,
        Error::Refused {
            refusal: Refusal::ForeignRedirect,
            ..
        }
    ));
}

#[test]
fn a_secret_does_not_leave_https() {
    let mut request = Request::get("https://a.example:8443/".parse().expect("URL"));
    request.secret = true;
    let target: Url = "http://a.example:8443/".parse().expect("URL");
    let error = redirect(request.clone(), target.clone(), StatusCode::FOUND).expect_err("refused");
    assert!(matches!(
        error,
        Error::Refused {
            refusal: Refusal::Downgrade,
            ..
        }
    ));
    request.secret = false;
    assert!(redirect(request, target, StatusCode::FOUND).is_ok());
}

#[tokio::test]
async fn the_allowlist_holds_on_every_hop() {
    let address = serve(site()).await;
    let table = Table::of(&[("good.example", &["127.0.0.1"]), ("bad.example", &["127.0.0.1"])]);
    let hosts = AllowedHosts::new(vec![HostPattern::parse("good.*").expect("a glob")]);
    let client = client(true, table).with_allowed_hosts(Some(hosts));
    let port = address.port();
    let good = fetch(&client, &format!("http://good.example:{port}/ok")).await;
    assert_eq!(good.expect("a body"), "hello");
    for url in [
        format!("http://bad.example:{port}/ok"),
        format!("http://good.example:{port}/to?http://bad.example:{port}/ok"),
    ] {
        let (found, _) = refusal(fetch(&client, &url).await);
        assert_eq!(
            found,
            Refusal::NotAllowed {
                host: "bad.example".to_owned()
            }
        );
    }
}

#[tokio::test]
async fn proxies_from_the_environment_are_ignored() {
    // The environment of a test process is shared, so the proof is a child process.
    let address = serve(site()).await;
    let proxied = Arc::new(Mutex::new(Vec::new()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let proxy = listener.local_addr().expect("an address");
    let seen = Arc::clone(&proxied);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 512];
            let count = stream.read(&mut buffer).await.unwrap_or(0);
            seen.lock().expect("a lock").push(buffer[..count].to_vec());
        }
    });
    let status = tokio::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "outbound::client::tests::child_of_the_proxy_test"])
        .env("STAGESET_TEST_PROXY_TARGET", format!("http://{address}/ok"))
        .env("http_proxy", format!("http://{proxy}"))
        .env("HTTP_PROXY", format!("http://{proxy}"))
        .env("ALL_PROXY", format!("http://{proxy}"))
        .env_remove("NO_PROXY")
        .output()
        .await
        .expect("the child runs");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
    assert!(String::from_utf8_lossy(&status.stdout).contains("1 passed"));
    assert_eq!(proxied.lock().expect("a lock").len(), 0);
}

/// Does something only as a child of the test above.
#[tokio::test]
async fn child_of_the_proxy_test() {
    if let Ok(url) = std::env::var("STAGESET_TEST_PROXY_TARGET") {
        let client = client(true, Table::default());
        assert_eq!(fetch(&client, &url).await.expect("a body"), "hello");
    }
}

/// Rules: run 12 timeout
#[tokio::test]
async fn a_body_that_trickles_is_given_up() {
    let address = serve(site()).await;
    let client = client(true, Table::default());
    let caps = Limits {
        pace: Some(Pace {
            rate: 64 << 10,
            after: Duration::from_millis(200),
        }),
        ..limits(1 << 20)
    };
    let error = client
        .fetch(&format!("http://{address}/trickles"), &caps)
        .await
        .expect_err("it is too slow");
    assert!(
        matches!(error, Error::TooSlow { .. }) && !error.is_terminal(),
        "{error:?}"
    );
    assert!(error.to_string().contains("at least 65536 bytes a second"), "{error}");
    let quick = client.fetch(&format!("http://{address}/ok"), &caps).await;
    assert_eq!(quick.expect("it came at once"), "hello");
}

#[test]
fn a_pace_counts_from_its_time_on_and_on_average() {
    let pace = Pace {
        rate: 1000,
        after: Duration::from_secs(10),
    };
    let missed = |bytes, seconds| pace.is_missed(bytes, Duration::from_secs(seconds));
    assert!(!missed(0, 10), "it has its time");
    assert!(missed(10_999, 11) && !missed(11_000, 11));
}
