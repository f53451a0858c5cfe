-- An incident lasts from the opening of a circuit until it closes. Its first period has the time at which the circuit
-- closed; a period in which a half-open circuit was open again `continues` the incident.
ALTER TABLE circuit_periods ADD COLUMN continues INTEGER NOT NULL DEFAULT 0;
ALTER TABLE circuit_periods ADD COLUMN closed_at INTEGER;
UPDATE circuit_periods SET closed_at = ended_at;
CREATE INDEX circuit_periods_unresolved ON circuit_periods (webhook_id) WHERE closed_at IS NULL AND NOT continues;
DROP INDEX circuit_periods_by_tenant;
CREATE INDEX circuit_periods_by_tenant ON circuit_periods (tenant_id, opened_at) WHERE NOT continues;
