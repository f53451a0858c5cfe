//! A scripted name server over UDP and TCP on one loopback port. It replies correctly, wrongly, differently each
//! time, or not at all.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME},
    },
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinHandle,
};

/// The reply to one query for a name.
#[derive(Clone, Debug)]
pub enum DnsReply {
    /// The name has these addresses; each query gets those of its record type.
    Addresses(Vec<IpAddr>),
    /// The name is an alias of another name, whose addresses are in the same reply.
    Alias(&'static str, Vec<IpAddr>),
    /// The name is an alias of another name, without that name's addresses.
    AliasAlone(&'static str),
    /// The name exists and has no address.
    Nothing,
    /// The name does not exist (`NXDOMAIN`).
    NoSuchName,
    /// The server fails (`SERVFAIL`).
    ServerFailure,
    /// No reply.
    NoReply,
    /// Bytes that are not a DNS message.
    Garbage,
    /// A reply with these addresses whose second half is missing.
    TruncatedBytes(Vec<IpAddr>),
    /// A truncated reply over UDP; these addresses over TCP.
    OverTcp(Vec<IpAddr>),
    /// A truncated reply over UDP and over TCP.
    Truncated,
    /// These addresses for a name other than the one queried.
    WrongName(Vec<IpAddr>),
}

impl DnsReply {
    /// Builds `Addresses` from strings.
    pub fn addresses(texts: &[&str]) -> Self {
        Self::Addresses(addresses(texts))
    }
}

/// Parses addresses.
pub fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|_| panic!("{text} is no address"))).collect()
}

/// The scripted replies for a name, and the number of queries per record type.
#[derive(Default)]
struct NameScript {
    lines: Vec<DnsReply>,
    queries: HashMap<RecordType, usize>,
}

type Scripts = Arc<Mutex<HashMap<String, NameScript>>>;

/// A scripted name server, until dropped. Names without a script do not exist.
pub struct Dns {
    address: SocketAddr,
    scripts: Scripts,
    tasks: [JoinHandle<()>; 2],
}

impl Dns {
    /// Starts a server without scripted names.
    pub async fn start() -> Self {
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.expect("no free port on 127.0.0.1");
            // The TCP port may be in use for UDP.
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = tcp.local_addr().unwrap();
        let scripts = Scripts::default();
        let tasks =
            [tokio::spawn(serve_udp(udp, scripts.clone())), tokio::spawn(serve_tcp(tcp, scripts.clone()))];
        Self { address, scripts, tasks }
    }

    /// Returns its address, as `ip:port`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the replies for a name: one per query of each record type in turn, then the last one for all further
    /// queries.
    pub fn script(&self, name: &str, lines: impl IntoIterator<Item = DnsReply>) {
        let lines: Vec<DnsReply> = lines.into_iter().collect();
        assert!(!lines.is_empty(), "a script needs at least one reply");
        self.scripts.lock().insert(name.to_owned(), NameScript { lines, queries: HashMap::new() });
    }

    /// Returns the number of queries for the IPv4 address of a name.
    pub fn queries(&self, name: &str) -> usize {
        let scripts = self.scripts.lock();
        scripts.get(name).and_then(|script| script.queries.get(&RecordType::A)).copied().unwrap_or(0)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn serve_udp(socket: UdpSocket, scripts: Scripts) {
    let mut buffer = [0; 4096];
    loop {
        let Ok((length, peer)) = socket.recv_from(&mut buffer).await else { continue };
        if let Some(response) = reply(&buffer[..length], &scripts, true) {
            socket.send_to(&response, peer).await.ok();
        }
    }
}

async fn serve_tcp(listener: TcpListener, scripts: Scripts) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(serve_stream(stream, scripts.clone()));
    }
}

/// Serves a TCP connection, where each message is preceded by its length.
async fn serve_stream(mut stream: TcpStream, scripts: Scripts) -> Option<()> {
    loop {
        let mut question = vec![0; usize::from(stream.read_u16().await.ok()?)];
        stream.read_exact(&mut question).await.ok()?;
        let response = reply(&question, &scripts, false)?;
        stream.write_u16(u16::try_from(response.len()).ok()?).await.ok()?;
        stream.write_all(&response).await.ok()?;
    }
}

fn reply(question: &[u8], scripts: &Scripts, datagram: bool) -> Option<Vec<u8>> {
    let question = Message::from_vec(question).ok()?;
    let query = question.queries.first()?.clone();
    let reply = next_line(scripts, query.name(), query.query_type());
    let mut message = Message::response(question.metadata.id, question.metadata.op_code);
    message.metadata.recursion_desired = true;
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    let kind = query.query_type();
    let found = |owner: &Name, addresses: &[IpAddr]| -> Vec<Record> {
        addresses.iter().filter_map(|address| record(owner, *address, kind)).collect()
    };
    let named = |name: &str| Name::from_ascii(format!("{name}.")).unwrap();
    let alias = |to: &Name| Record::from_rdata(query.name().clone(), 0, RData::CNAME(CNAME(to.clone())));
    match &reply {
        DnsReply::Addresses(all) | DnsReply::TruncatedBytes(all) => {
            message.answers = found(query.name(), all)
        }
        DnsReply::OverTcp(all) if !datagram => message.answers = found(query.name(), all),
        DnsReply::OverTcp(_) | DnsReply::Truncated => message.metadata.truncation = true,
        DnsReply::WrongName(all) => message.answers = found(&named("another.test"), all),
        DnsReply::Alias(to, all) => {
            message.answers = vec![alias(&named(to))];
            message.answers.extend(found(&named(to), all));
        }
        DnsReply::AliasAlone(to) => message.answers = vec![alias(&named(to))],
        DnsReply::Nothing => {}
        DnsReply::NoSuchName => message.metadata.response_code = ResponseCode::NXDomain,
        DnsReply::ServerFailure => message.metadata.response_code = ResponseCode::ServFail,
        DnsReply::NoReply => return None,
        DnsReply::Garbage => return Some(b"\xff\xfe this is no reply \x00\x01\x02".to_vec()),
    }
    let mut bytes = message.to_vec().unwrap();
    if matches!(reply, DnsReply::TruncatedBytes(_)) {
        bytes.truncate(bytes.len() - 3);
    }
    Some(bytes)
}

/// Returns the scripted reply for this query.
fn next_line(scripts: &Scripts, name: &Name, kind: RecordType) -> DnsReply {
    let mut scripts = scripts.lock();
    let name = name.to_ascii().trim_end_matches('.').to_lowercase();
    let Some(script) = scripts.get_mut(&name) else { return DnsReply::NoSuchName };
    let requests = script.queries.entry(kind).or_default();
    let line = (*requests).min(script.lines.len() - 1);
    *requests += 1;
    script.lines[line].clone()
}

fn record(owner: &Name, address: IpAddr, wanted: RecordType) -> Option<Record> {
    let data = match (address, wanted) {
        (IpAddr::V4(address), RecordType::A) => RData::A(A(address)),
        (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA(AAAA(address)),
        _ => return None,
    };
    // A TTL of 0 makes every resolution a new query.
    Some(Record::from_rdata(owner.clone(), 0, data))
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;

    use super::*;

    /// Sends a query over UDP, as a resolver does.
    async fn ask(dns: &Dns, name: &str, kind: RecordType) -> Message {
        let mut question = Message::query();
        question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(&question.to_vec().unwrap(), dns.address()).await.unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).await.unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    }

    #[tokio::test]
    async fn replies_follow_the_script_and_the_last_one_repeats() {
        let dns = Dns::start().await;
        let lines =
            [DnsReply::ServerFailure, DnsReply::addresses(&["192.0.2.1", "2001:db8::1", "192.0.2.2"])];
        dns.script("a.test", lines);
        for (kind, responses) in [(RecordType::A, 2), (RecordType::AAAA, 1)] {
            let first = ask(&dns, "A.test.", kind).await;
            assert_eq!(first.metadata.response_code, ResponseCode::ServFail);
            for _ in 0..2 {
                let later = ask(&dns, "a.test.", kind).await;
                assert_eq!(
                    (later.metadata.response_code, later.answers.len()),
                    (ResponseCode::NoError, responses)
                );
            }
        }
        assert_eq!((dns.queries("a.test"), dns.queries("b.test")), (3, 0));
        let unknown = ask(&dns, "b.test.", RecordType::A).await;
        assert_eq!(unknown.metadata.response_code, ResponseCode::NXDomain);
    }
}
