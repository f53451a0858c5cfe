//! PostgreSQL's own programs: where they are, and how they run whoever runs the tests.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    hash::{BuildHasher, RandomState},
    io,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where Debian puts the versions of PostgreSQL.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Every server is out of the way of any other: TCP on loopback, and no socket file.
const ALWAYS: [&str; 2] = ["listen_addresses=127.0.0.1", "unix_socket_directories="];

pub(super) struct Programs {
    bin: PathBuf,
    /// Who runs them where it is not us, since PostgreSQL refuses to run as root.
    user: Option<(u32, u32)>,
}

impl Programs {
    /// The newest version here; panics with the remedy where there is none.
    pub(super) fn find() -> Self {
        let user = rustix::process::geteuid().is_root().then(|| {
            let users = fs::read_to_string("/etc/passwd").expect("a system has users");
            let found = ["postgres", "nobody"].iter().find_map(|name| user_in(&users, name));
            found.expect("PostgreSQL does not run as root; make a user: sudo adduser --system postgres")
        });
        Self { bin: newest(Path::new(DEBIAN), &std::env::var_os("PATH").unwrap_or_default()), user }
    }

    /// Makes a cluster in `folder/data` with the superuser `redrive`; `stdin` stays open meanwhile.
    pub(super) fn make_cluster(&self, folder: &Path, stdin: Stdio) {
        let data = folder.join("data");
        // Who runs the server has to get to its data through a folder that is ours.
        fs::set_permissions(folder, Permissions::from_mode(0o711)).told(folder);
        fs::create_dir(&data).told(&data);
        self.give(&data, 0o700);
        let mut command = Command::new("setpriv");
        command.args(self.as_user()).arg(self.bin.join("initdb")).arg("--pgdata").arg(&data);
        command.args(["--username=redrive", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]);
        command.args(["--no-sync", "--no-instructions"]).stdin(stdin);
        let output = without_settings(&mut command).output().expect("no `setpriv` command here");
        assert!(
            output.status.success(),
            "initdb failed with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
    }

    /// Gives a file to who runs the server, for nobody else to read.
    pub(super) fn give(&self, path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).told(path);
        if let Some((user, group)) = self.user {
            std::os::unix::fs::chown(path, Some(user), Some(group)).told(path);
        }
    }

    /// A shell in a session of its own that runs `script` with the folder and the words of the server.
    pub(super) fn keeper(
        &self,
        session: &[&str],
        script: &str,
        folder: &Path,
        port: u16,
        settings: &[&str],
    ) -> Command {
        let path = folder.join("log");
        let log = File::options().create(true).append(true).open(&path).told(&path);
        let mut command = Command::new("setsid");
        command.args(session).args(["sh", "-c", script, "postgres-keeper"]).arg(folder);
        // The server never outlives its keeper.
        command.args(["setpriv", "--pdeathsig=INT"]).args(self.as_user()).arg(self.bin.join("postgres"));
        command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string()]);
        command.args(ALWAYS.iter().chain(settings).flat_map(|setting| ["-c", setting]));
        command.stdout(log.try_clone().told(&path)).stderr(log);
        without_settings(&mut command);
        command
    }

    fn as_user(&self) -> Vec<String> {
        let Some((user, group)) = self.user else { return Vec::new() };
        vec![format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]
    }
}

/// A port that is free now, below those that systems hand out: nobody gets it by chance while its server
/// is stopped.
pub(super) fn free_port() -> u16 {
    let mut ports = (0..1000).map(|n| 20_000 + (RandomState::new().hash_one(n) % 12_000) as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("no free port on 127.0.0.1")
}

/// What the server and its keeper have said.
pub(super) fn said(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

/// An error in a panic's message with the file it is about.
pub(super) trait Told<T> {
    fn told(self, path: &Path) -> T;
}

impl<T> Told<T> for io::Result<T> {
    fn told(self, path: &Path) -> T {
        self.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// Settings of the person who runs the tests must not change what is tested.
fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.current_dir("/")
}

/// The directory of the newest version's programs, or the first on the path that has them.
fn newest(versions: &Path, path: &OsStr) -> PathBuf {
    let mut found: Vec<_> = fs::read_dir(versions)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    let installed = found.into_iter().map(|version| versions.join(version.to_string()).join("bin"));
    let complete = |bin: &PathBuf| bin.join("postgres").exists() && bin.join("initdb").exists();
    installed.chain(std::env::split_paths(path)).find(complete).unwrap_or_else(|| {
        panic!(
            "the tests need a PostgreSQL server to start; install it with: sudo apt-get install postgresql"
        )
    })
}

/// The ids of a user and its group in the text of `/etc/passwd`.
fn user_in(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    Some((ids.next()??, ids.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(folder: &Path, names: &[&str]) {
        fs::create_dir_all(folder).unwrap();
        names.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
    }

    #[test]
    fn the_newest_whole_version_is_taken() {
        let dir = tempfile::TempDir::new().unwrap();
        let (versions, path) = (dir.path().join("versions"), dir.path().join("path"));
        installed(&path, &["postgres", "initdb"]);
        assert_eq!(newest(&versions, path.as_os_str()), path);
        for (version, names) in
            [("9", &["postgres", "initdb"][..]), ("15", &["postgres", "initdb"]), ("17", &["psql"])]
        {
            installed(&versions.join(version).join("bin"), names);
        }
        assert_eq!(newest(&versions, path.as_os_str()), versions.join("15/bin"));
    }

    #[test]
    #[should_panic(expected = "install it with: sudo apt-get install postgresql")]
    fn a_missing_server_is_told_with_its_remedy() {
        newest(Path::new("/nowhere"), OsStr::new("/nowhere/else"));
    }

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "postgres2:x:7:8::/:\nroot:x:0:0:root:/root:/bin/bash\npostgres:x:101:104:,,,:/:/bin/sh\n";
        assert_eq!(user_in(users, "postgres"), Some((101, 104)));
        assert_eq!(user_in(users, "nobody"), None);
    }
}
