//! Logs, counters, histograms, and health and metrics over HTTP.
