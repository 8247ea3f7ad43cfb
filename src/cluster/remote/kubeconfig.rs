//! What of a tenant's kubeconfig is obeyed: an address, a certificate authority, inline credentials. Everything else
//! either acts inside the controller (programs, files, proxies) or changes whom the server sees, and is refused by
//! name. Pure: text to configuration.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use kube::Config;
use kube::config::AuthInfo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use crate::outbound::{Policy, Refusal};

/// Why a kubeconfig is refused. Values are never repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {why}: {next}")]
pub struct Fault {
    /// Path of the field inside the kubeconfig.
    pub field: String,
    pub why: String,
    /// What to do about it.
    pub next: &'static str,
}

impl Fault {
    pub(super) fn new(field: impl Into<String>, why: impl Into<String>, next: &'static str) -> Self {
        Self {
            field: field.into(),
            why: why.into(),
            next,
        }
    }
}

const INLINE_CREDENTIALS: &str = "put a token, or client-certificate-data and client-key-data, into the kubeconfig";
const INLINE_CA: &str = "put the certificates into certificate-authority-data";
const NO_IMPERSONATION: &str = "remove it, and set spec.serviceAccountName to act as another identity";

#[derive(Deserialize)]
struct File {
    #[serde(default, deserialize_with = "or_default")]
    clusters: Vec<NamedCluster>,
    #[serde(default, deserialize_with = "or_default")]
    users: Vec<NamedUser>,
    #[serde(default, deserialize_with = "or_default")]
    contexts: Vec<NamedContext>,
    #[serde(rename = "current-context")]
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    cluster: Server,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct Server {
    server: Option<String>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
    disable_compression: Option<bool>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    user: User,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    username: Option<String>,
    password: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    #[serde(rename = "as")]
    impersonate: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<IgnoredAny>>,
    as_user_extra: Option<IgnoredAny>,
    auth_provider: Option<IgnoredAny>,
    exec: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    context: Context,
}

#[derive(Deserialize, Default)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Client-go takes an empty string for an absent one.
fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|t| !t.is_empty())
}

/// The connection a kubeconfig describes. Built from the accepted fields alone, so that a field nobody here knows has no
/// effect. Every entry has to be harmless, also those the current context does not use.
///
/// # Errors
/// The first field that is refused or missing.
pub fn accept(text: &str, policy: &Policy) -> Result<Config, Fault> {
    // The parser's own message quotes the text, so it stays out.
    let file: File = serde_saphyr::from_str(text).map_err(|_| {
        Fault::new(
            "the value",
            "is not a kubeconfig in YAML or JSON",
            "store the file that kubectl works with, unencoded in stringData or base64-encoded once in data",
        )
    })?;
    for (at, entry) in file.clusters.iter().enumerate() {
        refuse_server(&format!("clusters[{at}].cluster"), &entry.cluster)?;
    }
    for (at, entry) in file.users.iter().enumerate() {
        refuse_user(&format!("users[{at}].user"), &entry.user)?;
    }
    let (server_at, user_at) = current(&file)?;
    let mut config = connection(
        &format!("clusters[{server_at}].cluster"),
        &file.clusters[server_at].cluster,
        policy,
    )?;
    config.auth_info = credentials(&format!("users[{user_at}].user"), &file.users[user_at].user)?;
    Ok(config)
}

fn refuse_server(at: &str, server: &Server) -> Result<(), Fault> {
    let refuse = |field: &str, why, next| Err(Fault::new(format!("{at}.{field}"), why, next));
    if set(&server.certificate_authority).is_some() {
        return refuse("certificate-authority", "names a file of the controller", INLINE_CA);
    }
    if server.insecure_skip_tls_verify == Some(true) {
        return refuse(
            "insecure-skip-tls-verify",
            "lets anybody pose as the API server",
            INLINE_CA,
        );
    }
    if set(&server.proxy_url).is_some() {
        return refuse(
            "proxy-url",
            "sends requests past the controller's address guard",
            "remove it, and give the API server an address that the controller reaches directly",
        );
    }
    Ok(())
}

fn refuse_user(at: &str, user: &User) -> Result<(), Fault> {
    let refuse = |field: &str, why, next| Err(Fault::new(format!("{at}.{field}"), why, next));
    if user.exec.is_some() {
        return refuse("exec", "runs a program in the controller", INLINE_CREDENTIALS);
    }
    if user.auth_provider.is_some() {
        return refuse("auth-provider", "runs a plugin in the controller", INLINE_CREDENTIALS);
    }
    let files = [
        ("tokenFile", &user.token_file),
        ("client-certificate", &user.client_certificate),
        ("client-key", &user.client_key),
    ];
    if let Some((field, _)) = files.iter().find(|(_, value)| set(value).is_some()) {
        return refuse(field, "names a file of the controller", INLINE_CREDENTIALS);
    }
    let impersonation = [
        ("as", set(&user.impersonate).is_some()),
        ("as-uid", set(&user.as_uid).is_some()),
        ("as-groups", user.as_groups.as_ref().is_some_and(|g| !g.is_empty())),
        ("as-user-extra", user.as_user_extra.is_some()),
    ];
    match impersonation.iter().find(|(_, used)| *used) {
        Some((field, _)) => refuse(field, "impersonates another identity", NO_IMPERSONATION),
        None => Ok(()),
    }
}

/// Positions of the cluster and the user of the current context.
fn current(file: &File) -> Result<(usize, usize), Fault> {
    let name = set(&file.current_context)
        .ok_or_else(|| Fault::new("current-context", "is not set", "set it to the context to use"))?;
    let contexts: Vec<&str> = file.contexts.iter().map(|c| c.name.as_str()).collect();
    let at = only("current-context", "contexts", &contexts, name)?;
    let context = &file.contexts[at].context;
    let missing = |field: &str| {
        Fault::new(
            format!("contexts[{at}].context.{field}"),
            "is not set",
            "name an entry of the kubeconfig",
        )
    };
    let cluster = set(&context.cluster).ok_or_else(|| missing("cluster"))?;
    let user = set(&context.user).ok_or_else(|| missing("user"))?;
    let clusters: Vec<&str> = file.clusters.iter().map(|c| c.name.as_str()).collect();
    let users: Vec<&str> = file.users.iter().map(|u| u.name.as_str()).collect();
    Ok((
        only(
            &format!("contexts[{at}].context.cluster"),
            "clusters",
            &clusters,
            cluster,
        )?,
        only(&format!("contexts[{at}].context.user"), "users", &users, user)?,
    ))
}

/// Tools differ in which of two entries of one name they take, so there must be one.
fn only(field: &str, list: &str, names: &[&str], wanted: &str) -> Result<usize, Fault> {
    let mut found = names
        .iter()
        .enumerate()
        .filter(|(_, name)| **name == wanted)
        .map(|(at, _)| at);
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (None, _) => Err(Fault::new(
            field,
            format!("names no entry of {list}"),
            "name an entry of the kubeconfig",
        )),
        (Some(_), Some(_)) => Err(Fault::new(
            field,
            format!("names two entries of {list}"),
            "remove one of them",
        )),
    }
}

fn connection(at: &str, server: &Server, policy: &Policy) -> Result<Config, Fault> {
    let field = format!("{at}.server");
    let address = set(&server.server)
        .ok_or_else(|| Fault::new(&field, "is not set", "set it to the https:// address of the API server"))?;
    let mut config = Config::new(check_address(&field, address, policy)?);
    config.disable_compression = server.disable_compression.unwrap_or_default();
    if let Some(name) = set(&server.tls_server_name) {
        ServerName::try_from(name.to_owned()).map_err(|_| {
            Fault::new(
                format!("{at}.tls-server-name"),
                "is no host name",
                "set it to a name in the server's certificate",
            )
        })?;
        config.tls_server_name = Some(name.to_owned());
    }
    if let Some(data) = set(&server.certificate_authority_data) {
        let field = format!("{at}.certificate-authority-data");
        config.root_cert = Some(certificates(&field, data)?.into_iter().map(|c| c.to_vec()).collect());
    }
    Ok(config)
}

fn check_address(field: &str, address: &str, policy: &Policy) -> Result<http::Uri, Fault> {
    let invalid = || {
        Fault::new(
            field,
            "is no address",
            "set it to the https:// address of the API server",
        )
    };
    let url = url::Url::parse(address).map_err(|_| invalid())?;
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err(Fault::new(
            field,
            "holds more than an address",
            "leave scheme, host, port and path, and put credentials into the user",
        ));
    }
    policy.check_url(&url).map_err(|refusal| refused(field, &refusal))?;
    // In clear text anybody on the way reads the credentials; a local set-up may do so with itself.
    let clear_text_at_home = policy.allow_loopback && is_loopback(&url);
    if url.scheme() != "https" && !clear_text_at_home {
        return Err(Fault::new(
            field,
            "is not https",
            "give the API server's https:// address",
        ));
    }
    address.parse().map_err(|_| invalid())
}

fn is_loopback(url: &url::Url) -> bool {
    let strict = Policy::default();
    matches!(
        strict.check_url(url),
        Err(Refusal::Localhost { .. } | Refusal::Address { .. })
    )
}

/// The class of the address, without the address.
pub(super) fn refused(field: &str, refusal: &Refusal) -> Fault {
    let why = match refusal {
        Refusal::Address { class, .. } => format!("is {class}"),
        Refusal::Resolved { class, .. } => format!("is a name of {class}"),
        Refusal::Localhost { .. } => "is the controller's own machine".to_owned(),
        _ => "cannot be contacted".to_owned(),
    };
    Fault::new(
        field,
        why,
        "use an address at which other machines reach the API server",
    )
}

fn credentials(at: &str, user: &User) -> Result<AuthInfo, Fault> {
    let mut auth = AuthInfo::default();
    let fault = |field: &str, why: &str, next| Fault::new(format!("{at}.{field}"), why, next);
    if let Some(token) = set(&user.token).map(str::trim) {
        // A line break would end the header, and with it the process's trust in it.
        HeaderValue::from_str(token).map_err(|_| {
            fault(
                "token",
                "holds characters that no token has",
                "store the token as it was issued",
            )
        })?;
        auth.token = Some(token.to_owned().into());
    }
    match (set(&user.client_certificate_data), set(&user.client_key_data)) {
        (None, None) => {}
        (Some(_), None) => {
            return Err(fault(
                "client-key-data",
                "is not set",
                "add the key of the client certificate",
            ));
        }
        (None, Some(_)) => {
            return Err(fault(
                "client-certificate-data",
                "is not set",
                "add the certificate of the client key",
            ));
        }
        (Some(certificate), Some(key)) => {
            let field = format!("{at}.client-certificate-data");
            certificates(&field, certificate)?;
            auth.client_certificate_data = Some(compact(certificate));
            let pem = decoded(&format!("{at}.client-key-data"), key)?;
            PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
                fault(
                    "client-key-data",
                    "holds no private key in PEM",
                    "encode an unencrypted PKCS#8, PKCS#1 or SEC1 key",
                )
            })?;
            auth.client_key_data = Some(compact(key).into());
        }
    }
    if let Some(name) = set(&user.username) {
        auth.username = Some(name.to_owned());
        auth.password = Some(user.password.clone().unwrap_or_default().into());
    }
    if auth.token.is_none() && auth.client_certificate_data.is_none() && auth.username.is_none() {
        return Err(Fault::new(at, "holds no credentials", INLINE_CREDENTIALS));
    }
    Ok(auth)
}

fn compact(base64: &str) -> String {
    base64.split_whitespace().collect()
}

fn decoded(field: &str, data: &str) -> Result<Vec<u8>, Fault> {
    STANDARD.decode(compact(data)).map_err(|_| {
        Fault::new(
            field,
            "is not base64",
            "encode the PEM text once, as kubectl config view --raw prints it",
        )
    })
}

fn certificates(field: &str, data: &str) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let pem = decoded(field, data)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Fault::new(
            field,
            "holds no certificate in PEM",
            "encode the PEM text of the certificates",
        )),
    }
}
