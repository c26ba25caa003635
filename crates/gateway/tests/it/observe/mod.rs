//! Metrics, traces, the dashboard and the alerts.

mod dashboards;
mod requests;
