//! A name server of the tests' own, over UDP and TCP on one loopback port, that answers as scripted: well,
//! wrongly, differently each time, or not at all.

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

/// What is said to one question about a name.
#[derive(Clone, Debug)]
pub enum Say {
    /// It has these addresses; each question gets those of its kind.
    Addresses(Vec<IpAddr>),
    /// It is another name, which has these addresses, all in one answer.
    Alias(&'static str, Vec<IpAddr>),
    /// It is another name, and nothing about that one.
    AliasAlone(&'static str),
    /// It exists and has no address.
    Nothing,
    /// It does not exist.
    NoSuchName,
    /// The server has trouble.
    ServerFailure,
    /// No answer at all.
    Silence,
    /// Bytes that are no answer.
    Garbage,
    /// It has these addresses, but half of the answer is missing.
    Halved(Vec<IpAddr>),
    /// It has these addresses, which a datagram cannot hold: ask over TCP.
    OverTcp(Vec<IpAddr>),
    /// A datagram cannot hold it, and TCP neither.
    Truncated,
    /// These addresses for another name than was asked about.
    AboutAnother(Vec<IpAddr>),
}

impl Say {
    /// These addresses, as texts.
    pub fn addresses(texts: &[&str]) -> Self {
        Self::Addresses(addresses(texts))
    }
}

/// Addresses from texts.
pub fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|_| panic!("{text} is no address"))).collect()
}

/// What is to be said about a name, and how often it was asked about by kind.
#[derive(Default)]
struct Script {
    lines: Vec<Say>,
    asked: HashMap<RecordType, usize>,
}

type Scripts = Arc<Mutex<HashMap<String, Script>>>;

/// A scripted name server, until dropped. Names without a script do not exist.
pub struct Dns {
    address: SocketAddr,
    scripts: Scripts,
    tasks: [JoinHandle<()>; 2],
}

impl Dns {
    /// Starts one that knows no name.
    pub async fn start() -> Self {
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.expect("no free port on 127.0.0.1");
            // The same port may be taken for the other protocol.
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

    /// Where it listens, as `ip:port`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says these things about a name, one for each question of a kind in turn, and the last from then on.
    pub fn script(&self, name: &str, lines: impl IntoIterator<Item = Say>) {
        let lines: Vec<Say> = lines.into_iter().collect();
        assert!(!lines.is_empty(), "a script needs something to say");
        self.scripts.lock().insert(name.to_owned(), Script { lines, asked: HashMap::new() });
    }

    /// How often the IPv4 address of a name was asked for.
    pub fn asked(&self, name: &str) -> usize {
        let scripts = self.scripts.lock();
        scripts.get(name).and_then(|script| script.asked.get(&RecordType::A)).copied().unwrap_or(0)
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
        if let Some(answer) = answer(&buffer[..length], &scripts, true) {
            socket.send_to(&answer, peer).await.ok();
        }
    }
}

async fn serve_tcp(listener: TcpListener, scripts: Scripts) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(serve_stream(stream, scripts.clone()));
    }
}

/// Over TCP each message is preceded by its length.
async fn serve_stream(mut stream: TcpStream, scripts: Scripts) -> Option<()> {
    loop {
        let mut question = vec![0; usize::from(stream.read_u16().await.ok()?)];
        stream.read_exact(&mut question).await.ok()?;
        let answer = answer(&question, &scripts, false)?;
        stream.write_u16(u16::try_from(answer.len()).ok()?).await.ok()?;
        stream.write_all(&answer).await.ok()?;
    }
}

fn answer(question: &[u8], scripts: &Scripts, datagram: bool) -> Option<Vec<u8>> {
    let question = Message::from_vec(question).ok()?;
    let query = question.queries.first()?.clone();
    let say = next_line(scripts, query.name(), query.query_type());
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
    match &say {
        Say::Addresses(all) | Say::Halved(all) => message.answers = found(query.name(), all),
        Say::OverTcp(all) if !datagram => message.answers = found(query.name(), all),
        Say::OverTcp(_) | Say::Truncated => message.metadata.truncation = true,
        Say::AboutAnother(all) => message.answers = found(&named("another.test"), all),
        Say::Alias(to, all) => {
            message.answers = vec![alias(&named(to))];
            message.answers.extend(found(&named(to), all));
        }
        Say::AliasAlone(to) => message.answers = vec![alias(&named(to))],
        Say::Nothing => {}
        Say::NoSuchName => message.metadata.response_code = ResponseCode::NXDomain,
        Say::ServerFailure => message.metadata.response_code = ResponseCode::ServFail,
        Say::Silence => return None,
        Say::Garbage => return Some(b"\xff\xfe this is no answer \x00\x01\x02".to_vec()),
    }
    let mut bytes = message.to_vec().unwrap();
    if matches!(say, Say::Halved(_)) {
        bytes.truncate(bytes.len() - 3);
    }
    Some(bytes)
}

/// What the script has for this question.
fn next_line(scripts: &Scripts, name: &Name, kind: RecordType) -> Say {
    let mut scripts = scripts.lock();
    let name = name.to_ascii().trim_end_matches('.').to_lowercase();
    let Some(script) = scripts.get_mut(&name) else { return Say::NoSuchName };
    let asked = script.asked.entry(kind).or_default();
    let line = (*asked).min(script.lines.len() - 1);
    *asked += 1;
    script.lines[line].clone()
}

fn record(owner: &Name, address: IpAddr, wanted: RecordType) -> Option<Record> {
    let data = match (address, wanted) {
        (IpAddr::V4(address), RecordType::A) => RData::A(A(address)),
        (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA(AAAA(address)),
        _ => return None,
    };
    // No time to live: every look-up should be a new question.
    Some(Record::from_rdata(owner.clone(), 0, data))
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;

    use super::*;

    /// Asks over UDP, as a resolver does.
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
    async fn each_question_of_a_kind_has_its_next_line_and_the_last_stays() {
        let dns = Dns::start().await;
        let lines = [Say::ServerFailure, Say::addresses(&["192.0.2.1", "2001:db8::1", "192.0.2.2"])];
        dns.script("a.test", lines);
        for (kind, answers) in [(RecordType::A, 2), (RecordType::AAAA, 1)] {
            let first = ask(&dns, "A.test.", kind).await;
            assert_eq!(first.metadata.response_code, ResponseCode::ServFail);
            for _ in 0..2 {
                let later = ask(&dns, "a.test.", kind).await;
                assert_eq!(
                    (later.metadata.response_code, later.answers.len()),
                    (ResponseCode::NoError, answers)
                );
            }
        }
        assert_eq!((dns.asked("a.test"), dns.asked("b.test")), (3, 0));
        let unknown = ask(&dns, "b.test.", RecordType::A).await;
        assert_eq!(unknown.metadata.response_code, ResponseCode::NXDomain);
    }
}
