//! The servers that tests start, and their sharing between processes. Suites in `slow` wait, kill and restart; suites in `extended` take minutes or need unusual tools.

mod slow;
