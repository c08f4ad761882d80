//! Encrypted connections: TLS 1.3, where each side shows a certificate of one authority.
//!
//! What a certificate admits is a connection, no more: every frame still needs the secret of a grant.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use crate::wire::StartError;

/// Files in PEM, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate this rank shows, with those between it and the authority. It names the host or address that
    /// peers are told.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Certificates of the authority that has signed those of all peers.
    pub authority: PathBuf,
}

/// Both sides of connections, ready to use.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// Reads the files of `settings`.
    ///
    /// # Errors
    /// [`StartError::Setting`] for each file that cannot be read or does not hold what it should, and for a key that
    /// is not the certificate's.
    pub(super) fn load(settings: &TlsSettings) -> Result<Self, Vec<StartError>> {
        let mut faults = Vec::new();
        let chain = certificates(CERTIFICATE, &settings.certificate).map_err(|fault| faults.push(fault));
        let key =
            PrivateKeyDer::from_pem_file(&settings.key).map_err(|error| faults.push(unfit(KEY, &settings.key, &error)));
        let roots = roots(&settings.authority).map_err(|fault| faults.push(fault));
        let (Ok(chain), Ok(key), Ok(roots)) = (chain, key, roots) else { return Err(faults) };
        let provider = Arc::new(ring::default_provider());
        let client = client(&provider, roots.clone(), chain.clone(), key.clone_key());
        let client = client.map_err(|error| vec![unfit(CERTIFICATE, &settings.certificate, &error)])?;
        let server = server(&provider, roots, chain, key).map_err(|error| vec![unfit(KEY, &settings.key, &error)])?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The side that connects to `address`, a host and a port.
    ///
    /// # Errors
    /// The host is no name that a certificate could have.
    pub(super) fn to(&self, address: &str) -> io::Result<rustls::Connection> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(ClientConnection::new(self.client.clone(), name).map_err(io::Error::other)?.into())
    }

    /// The side that was connected to.
    ///
    /// # Errors
    /// Settings that the library refuses.
    pub(super) fn accept(&self) -> io::Result<rustls::Connection> {
        Ok(ServerConnection::new(self.server.clone()).map_err(io::Error::other)?.into())
    }
}

fn client(
    provider: &Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let versions = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13])?;
    let mut config = versions.with_root_certificates(roots).with_client_auth_cert(chain, key)?;
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server(
    provider: &Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let peers = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
    let peers = peers.map_err(|error| rustls::Error::General(error.to_string()))?;
    let versions = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13])?;
    let mut config = versions.with_client_cert_verifier(peers).with_single_cert(chain, key)?;
    // A side that sends only when it is asked: whatever else comes means that the connection is over.
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unfit(setting, path, &error))?;
    if certificates.is_empty() { Err(unfit(setting, path, &"no certificate is in it")) } else { Ok(certificates) }
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>, StartError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(AUTHORITY, path)? {
        roots.add(certificate).map_err(|error| unfit(AUTHORITY, path, &error))?;
    }
    Ok(Arc::new(roots))
}

fn unfit(setting: &'static str, path: &Path, why: &dyn std::fmt::Display) -> StartError {
    let change = match path.as_os_str().is_empty() {
        true => "set certificate, key and authority, or none of them".to_owned(),
        false => format!("name a PEM file that fits ({why})"),
    };
    StartError::Setting { setting, value: format!("{path:?}"), change }
}

const CERTIFICATE: &str = "transfer.tcp.tls.certificate";
const KEY: &str = "transfer.tcp.tls.key";
const AUTHORITY: &str = "transfer.tcp.tls.authority";
