// Package weir submits jobs to Weir and settles them, in transactions of the caller's own, beside River's client for Go.
//
// A job that is submitted is there when, and only when, the caller commits; so is what a worker writes and the completion
// of its job. Limits hold across all programs and languages, since the database decides.
package weir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// ErrFencedOut says that another worker has the job by now: roll back what this attempt did.
var ErrFencedOut = errors.New("weir: the job was taken back, and this attempt's work is dropped")

// Client calls Weir's functions. The zero value finds them by the search_path.
type Client struct {
	// Schema is Weir's, as WEIR_SCHEMA has it.
	Schema string
}

// Quota is what a plan allows in a billing period and what of it is taken. A nil Limit is unlimited.
type Quota struct {
	Used     int64  `json:"used"`
	Reserved int64  `json:"reserved"`
	Limit    *int64 `json:"limit"`
	// Ceiling is beyond the limit, and up to it jobs are accepted; nil is not at all.
	Ceiling *int64 `json:"ceiling"`
	// Overage is what is taken beyond the limit.
	Overage   int64     `json:"overage"`
	Remaining *int64    `json:"remaining"`
	ResetAt   time.Time `json:"reset_at"`
	// Windows are those without room, when there is none.
	Windows []WindowQuota `json:"windows,omitempty"`
}

// WindowQuota is a window that has no room.
type WindowQuota struct {
	// Window is month, day, hour or minute.
	Window string `json:"window"`
	Quota
}

// Job is what is submitted.
type Job struct {
	// Subject names whom it is counted against, as the subject of a token does.
	Subject string
	// Service is the name in weir.toml.
	Service string
	// Args are encoded as a JSON object.
	Args any
	// Amount is what the job may use at most; nil leaves it to the service.
	Amount *int64
	// IdempotencyKey makes the same submission within 24 hours the same job.
	IdempotencyKey string
	// RunAt is when the job is to run; zero is at once.
	RunAt time.Time
	// Priority is from 1, the first, to 4; zero is 1.
	Priority int
}

// Submitted is the answer to a submission.
type Submitted struct {
	// Outcome is admitted, parked, repeated, folded, over_quota, too_large, too_many_waiting or key_reused.
	Outcome string
	// JobID is River's; nil when nothing was accepted.
	JobID *int64
	Quota *Quota
}

// Accepted tells whether there is a job.
func (s Submitted) Accepted() bool { return s.JobID != nil }

func (c Client) function(name string) string {
	if c.Schema == "" {
		return name
	}
	return pgx.Identifier{c.Schema, name}.Sanitize()
}

// SubmitTx submits a job inside the transaction. The user's row stays locked until it ends, so commit soon.
func (c Client) SubmitTx(ctx context.Context, tx pgx.Tx, job Job) (Submitted, error) {
	args, err := json.Marshal(job.Args)
	if err != nil {
		return Submitted{}, fmt.Errorf("weir: the arguments are no JSON: %w", err)
	}
	options := map[string]any{}
	if job.IdempotencyKey != "" {
		options["idempotency_key"] = job.IdempotencyKey
	}
	if !job.RunAt.IsZero() {
		options["run_at"] = job.RunAt.Format(time.RFC3339Nano)
	}
	if job.Priority != 0 {
		options["priority"] = job.Priority
	}
	var submitted Submitted
	sql := "SELECT outcome, job_id, quota FROM " + c.function("weir_submit") + "($1, $2, $3, $4, $5)"
	err = tx.QueryRow(ctx, sql, job.Subject, job.Service, json.RawMessage(args), job.Amount, options).
		Scan(&submitted.Outcome, &submitted.JobID, &submitted.Quota)
	return submitted, err
}

// CompleteTx completes an attempt inside the transaction: charges the job, frees its slot and gives it on. A nil used
// charges all that was reserved. It returns what was charged, or ErrFencedOut.
func (c Client) CompleteTx(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, output any, used *int64) (int64, error) {
	// What pgx is given as text it takes for JSON that is made already.
	var made json.RawMessage
	if output != nil {
		var err error
		if made, err = json.Marshal(output); err != nil {
			return 0, fmt.Errorf("weir: the output is no JSON: %w", err)
		}
	}
	var outcome string
	var charged int64
	sql := "SELECT outcome, charged FROM " + c.function("weir_complete") + "($1, $2, $3, $4, $5)"
	if err := tx.QueryRow(ctx, sql, job.ID, job.Attempt, made, used, job.CreatedAt).Scan(&outcome, &charged); err != nil {
		return 0, err
	}
	if outcome == "fenced_out" {
		return 0, ErrFencedOut
	}
	return charged, nil
}

// FailTx records a failed attempt inside the transaction; a zero retryAt leaves the time to the service's policy. The
// outcome is retry, discarded or cancelled.
func (c Client) FailTx(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, failure error, retryAt time.Time) (string, error) {
	var at *time.Time
	if !retryAt.IsZero() {
		at = &retryAt
	}
	var outcome string
	sql := "SELECT " + c.function("weir_fail") + "($1, $2, $3, $4, $5)"
	if err := tx.QueryRow(ctx, sql, job.ID, job.Attempt, storable(failure.Error()), at, job.CreatedAt).Scan(&outcome); err != nil {
		return "", err
	}
	if outcome == "fenced_out" {
		return "", ErrFencedOut
	}
	return outcome, nil
}

// Progress says how far an attempt is, from 0 to 1, or returns ErrFencedOut. Call it outside of the job's transaction:
// nobody sees it before a commit.
func (c Client) Progress(ctx context.Context, pool *pgxpool.Pool, job *rivertype.JobRow, fraction float64, message string) error {
	sql := "SELECT " + c.function("weir_progress") + "($1, $2, $3, $4, $5)"
	var outcome string
	if err := pool.QueryRow(ctx, sql, job.ID, job.Attempt, fraction, message, job.CreatedAt).Scan(&outcome); err != nil {
		return err
	}
	if outcome == "fenced_out" {
		return ErrFencedOut
	}
	return nil
}

// ExtendTx reserves more for a job that runs. False is over the quota, and changes nothing.
func (c Client) ExtendTx(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, more int64) (bool, error) {
	var outcome string
	sql := "SELECT outcome FROM " + c.function("weir_extend") + "($1, $2, $3, $4)"
	if err := tx.QueryRow(ctx, sql, job.ID, job.Attempt, more, job.CreatedAt).Scan(&outcome); err != nil {
		return false, err
	}
	if outcome == "fenced_out" {
		return false, ErrFencedOut
	}
	return outcome == "extended", nil
}

// Work does a River job in a transaction in which it is also completed: what `do` writes, the charge and the completion are
// there together or not at all. Call it in a worker's Work, and return what it returns. A failure of `do` is recorded with
// Weir, so that the slot is free at once and the retry has one before it runs; River's own errors (cancel, snooze) and the
// end of ctx are left to River.
//
// River reports how an attempt ended a while after it did, to whatever attempt at the job runs by then. A success would
// complete that one without its work, so that everything but a completion is returned as a failure: River changes nothing
// where nothing runs, and has another attempt tried again.
func Work[T river.JobArgs](ctx context.Context, c Client, pool *pgxpool.Pool, job *river.Job[T],
	do func(ctx context.Context, tx pgx.Tx) (output any, used *int64, err error)) error {
	failure := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		output, used, err := do(ctx, tx)
		if err != nil {
			return err
		}
		_, err = c.CompleteTx(ctx, tx, job.JobRow, output, used)
		return err
	})
	var cancel *river.JobCancelError
	var snooze *river.JobSnoozeError
	if failure == nil || ctx.Err() != nil || errors.Is(failure, ErrFencedOut) ||
		errors.As(failure, &cancel) || errors.As(failure, &snooze) {
		return failure
	}
	// Where Weir cannot record it, River does.
	_ = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := c.FailTx(ctx, tx, job.JobRow, failure, time.Time{})
		return err
	})
	return recordable{failure}
}

// storable returns the text without what PostgreSQL cannot store: NUL, and bytes that are no UTF-8.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

// recordable is a failure that River can record: it does so together with those of other jobs, and would with none.
type recordable struct{ error }

func (failure recordable) Error() string { return storable(failure.error.Error()) }

func (failure recordable) Unwrap() error { return failure.error }
