"""Pictures of the dashboards' data: every panel drawn from what Prometheus answers to its queries."""
