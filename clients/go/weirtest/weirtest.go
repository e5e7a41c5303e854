// Package weirtest helps to test programs that submit or work jobs. A test runs in one transaction, which is rolled back,
// so that tests leave nothing behind and do not see each other's jobs.
//
// The connection's role owns Weir's schema, as in a database of tests.
package weirtest

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-queue/weir/clients/go"
)

// TB is the part of testing.TB that this package uses.
type TB interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
}

// Begin starts a transaction that is rolled back when the test ends.
func Begin(t TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// SetQuota sets the limit of a user for a service in each billing period; nil is unlimited. It creates an unknown user.
func SetQuota(ctx context.Context, c weir.Client, tx pgx.Tx, subject, service string, limit *int64) error {
	_, err := tx.Exec(ctx, "SELECT "+function(c, "set_test_quota")+"($1, $2, $3::bigint)", subject, service, limit)
	return err
}

// Ran is an attempt that RunQueued has ended.
type Ran struct {
	Job *rivertype.JobRow
	// Output and Err are the results of the function.
	Output any
	Err    error
}

// RunQueued works jobs, one after the other, until none of these queues has a job that can start now. The jobs of the
// transaction itself are among them. Each is completed, or fails with the error of `do`.
func RunQueued(ctx context.Context, c weir.Client, tx pgx.Tx, queues []string,
	do func(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow) (output any, used *int64, err error)) ([]Ran, error) {
	var ran []Ran
	for {
		job, err := claim(ctx, c, tx, queues)
		if job == nil || err != nil {
			return ran, err
		}
		one := Ran{Job: job}
		one.Err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			output, used, err := do(ctx, tx, job)
			if err != nil {
				return err
			}
			one.Output = output
			_, err = c.CompleteTx(ctx, tx, job, output, used)
			return err
		})
		if one.Err != nil {
			if _, err := c.FailTx(ctx, tx, job, one.Err, time.Time{}); err != nil {
				return ran, err
			}
		}
		ran = append(ran, one)
	}
}

// claim starts an attempt at the next job of the queues; nil if there is none.
func claim(ctx context.Context, c weir.Client, tx pgx.Tx, queues []string) (*rivertype.JobRow, error) {
	// A job that was promoted in this transaction starts after it.
	if _, err := tx.Exec(ctx, "SELECT "+function(c, "start_test_jobs")+"()"); err != nil {
		return nil, err
	}
	sql := "SELECT job_id, attempt, kind, args::text, created_at FROM " + function(c, "weir_claim") + "($1, 'go.test')"
	for _, queue := range queues {
		rows, err := tx.Query(ctx, sql, queue)
		if err != nil {
			return nil, err
		}
		jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*rivertype.JobRow, error) {
			job := rivertype.JobRow{Queue: queue, State: rivertype.JobStateRunning}
			var args string
			err := row.Scan(&job.ID, &job.Attempt, &job.Kind, &args, &job.CreatedAt)
			job.EncodedArgs = []byte(args)
			return &job, err
		})
		if err != nil {
			return nil, err
		}
		if len(jobs) > 0 {
			return jobs[0], nil
		}
	}
	return nil, nil
}

func function(c weir.Client, name string) string {
	if c.Schema == "" {
		return name
	}
	return pgx.Identifier{c.Schema, name}.Sanitize()
}
