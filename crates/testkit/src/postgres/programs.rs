//! Finds PostgreSQL's programs, and runs them regardless of the user who runs the tests.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::service::{Server, User};

/// The folder where Debian installs the versions of PostgreSQL.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Settings that keep servers from colliding: TCP on loopback only, and no socket file.
const ALWAYS: [&str; 2] = ["listen_addresses=127.0.0.1", "unix_socket_directories="];

pub(super) struct Programs {
    bin: PathBuf,
    /// The user of the server, because PostgreSQL refuses to run as root.
    pub(super) user: User,
}

impl Programs {
    /// Finds the newest installed version; panics with an installation hint if there is none.
    pub(super) fn find() -> Self {
        let remedy = "PostgreSQL does not run as root; create a user: sudo adduser --system postgres";
        let user = User::other_than_root(&["postgres", "nobody"], remedy);
        Self { bin: newest(Path::new(DEBIAN), &std::env::var_os("PATH").unwrap_or_default()), user }
    }

    /// Creates a database cluster in `folder/data` with the superuser `redrive`; `stdin` stays open until that is
    /// done.
    pub(super) fn make_cluster(&self, folder: &Path, stdin: Stdio) {
        let data = self.user.make_folder(folder, "data");
        let mut command = Command::new("setpriv");
        command.args(self.user.words()).arg(self.bin.join("initdb")).arg("--pgdata").arg(&data);
        command.args(["--username=redrive", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]);
        command.args(["--no-sync", "--no-instructions"]).stdin(stdin);
        run("initdb", &mut command);
    }

    /// Copies the database cluster served at this port into `folder/data`, as a replica of it.
    pub(super) fn copy_cluster(&self, folder: &Path, port: u16) {
        let data = self.user.make_folder(folder, "data");
        let mut command = Command::new("setpriv");
        command.args(self.user.words()).arg(self.bin.join("pg_basebackup")).arg("--pgdata").arg(&data);
        command.args([
            "--host=127.0.0.1",
            "--username=redrive",
            "--write-recovery-conf",
            "--checkpoint=fast",
        ]);
        command.args(["--wal-method=stream", "--no-sync"]).arg(format!("--port={port}")).stdin(Stdio::null());
        run("pg_basebackup", &mut command);
    }

    /// Returns the command that runs the server of this folder.
    pub(super) fn server(&self, crash: &'static str, folder: &Path, port: u16, settings: &[&str]) -> Server {
        let mut words: Vec<OsString> = vec![self.bin.join("postgres").into(), "-D".into()];
        words.extend([folder.join("data").into(), "-p".into(), port.to_string().into()]);
        words.extend(ALWAYS.iter().chain(settings).flat_map(|setting| ["-c".into(), setting.into()]));
        let folder = folder.to_owned();
        Server {
            name: "postgres",
            crash,
            folder,
            user: self.user,
            words,
            settings: Vec::new(),
            foreign: &["PG"],
        }
    }
}

fn run(name: &str, command: &mut Command) {
    let output = without_settings(command).output().expect("no `setpriv` command here");
    assert!(
        output.status.success(),
        "{name} failed with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
}

/// Removes the user's own PostgreSQL settings from the environment, so that they do not change what is tested.
fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.current_dir("/")
}

/// Returns the program directory of the newest version, or the first complete one on the path.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(folder: &Path, names: &[&str]) {
        fs::create_dir_all(folder).unwrap();
        names.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
    }

    #[test]
    fn newest_complete_version_is_chosen() {
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
    fn missing_server_panics_with_an_install_hint() {
        newest(Path::new("/nowhere"), OsStr::new("/nowhere/else"));
    }
}
