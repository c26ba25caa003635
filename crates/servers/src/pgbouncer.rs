//! A PgBouncer in front of a PostgreSQL.

use std::path::Path;
use std::process::Command;

use crate::postgres::{self, Postgres};
use crate::program;
use crate::server::{DropAction, Server};

const CONFIG: &str = "pgbouncer.ini";
const USERS: &str = "users";

/// A PgBouncer that admits every user of a PostgreSQL to all of its databases.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
    port: u16,
}

impl PgBouncer {
    /// Starts a PgBouncer in front of `postgres`, with this pool mode (`session`,
    /// `transaction` or `statement`) and this many connections to the server for
    /// each pair of user and database.
    pub fn start(postgres: &Postgres, pool_mode: &str, pool_size: usize) -> Self {
        let mut server = prepare();
        let config = |port| config(postgres, pool_mode, pool_size, port);
        let command = |server: &Server, port| command(server, &config(port));
        let port = server.start(command, postgres::is_ready);
        Self { server, port }
    }

    /// The URL of a database for a user. The names are not escaped.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's directory.
    pub fn directory(&self) -> &Path {
        self.server.directory()
    }

    /// The server's log.
    pub fn log(&self) -> String {
        self.server.log()
    }
}

fn prepare() -> Server {
    let server = Server::new("PgBouncer", DropAction::Kill);
    server.write(USERS, "\"postgres\" \"\"\n");
    server
}

fn command(server: &Server, config: &str) -> Command {
    server.write(CONFIG, config);
    let mut command = server.command(&program::find("pgbouncer"));
    command.arg(CONFIG);
    command
}

/// Users need no passwords and are not listed: `auth_user` looks them up in the
/// server.
fn config(postgres: &Postgres, pool_mode: &str, pool_size: usize, port: u16) -> String {
    let server = postgres.port();
    format!(
        "[databases]\n\
         * = host=127.0.0.1 port={server}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir = .\n\
         auth_type = trust\n\
         auth_file = {USERS}\n\
         auth_user = postgres\n\
         admin_users = postgres\n\
         pool_mode = {pool_mode}\n\
         default_pool_size = {pool_size}\n\
         max_client_conn = 1000\n\
         ignore_startup_parameters = extra_float_digits\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::taken_then_free;

    #[test]
    fn a_server_that_loses_its_port_starts_on_another() {
        let postgres = Postgres::start();
        let (_listener, ports) = taken_then_free();
        let config = |port| config(&postgres, "session", 1, port);
        let command = |server: &Server, port| command(server, &config(port));
        let mut server = prepare();
        let port = server.start_on(ports, command, postgres::is_ready);
        assert_eq!(port, ports[1]);
        assert!(
            server
                .log()
                .contains(&format!("listening on 127.0.0.1:{port}"))
        );
    }
}
