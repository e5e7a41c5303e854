// Package weir submits jobs to Weir and settles them, in your own transactions, together with River's client for Go.
//
// A submitted job exists if and only if your transaction commits. The same holds for what a worker writes and the
// completion of its job. Limits hold across all programs and languages, because the database decides.
package weir

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// ErrFencedOut means that another worker has the job. Roll back what this attempt wrote.
var ErrFencedOut = errors.New("weir: the job was taken over, so this attempt's work is rolled back")

// The causes (context.Cause) for which Work ends the context of an attempt. ErrFencedOut is another one.
var (
	// ErrCancelled means that the job's cancellation was requested.
	ErrCancelled = errors.New("weir: the job was cancelled")
	// ErrOverdue means that the attempt takes longer than the service's timeout.
	ErrOverdue = errors.New("weir: the attempt takes longer than the timeout of its service")
	// ErrSilent means that no heartbeat succeeded for eight seconds. Others soon get the job.
	ErrSilent = errors.New("weir: the database does not answer")
)

// ErrWrongVersion means that the database or this client has to be upgraded. The message names which.
var ErrWrongVersion = errors.New("weir: wrong version")

// upgrade is the number of the oldest upgrade of Weir's schema with all that this client uses.
const upgrade = 19

// Client calls Weir's functions. The zero value finds them by the search_path.
type Client struct {
	// Schema is the schema of Weir's tables: WEIR_SCHEMA.
	Schema string
}

// Quota is the quota of a billing period. A nil Limit is unlimited.
type Quota struct {
	Used     int64  `json:"used"`
	Reserved int64  `json:"reserved"`
	Limit    *int64 `json:"limit"`
	// Ceiling is the amount above the limit up to which jobs are accepted, as overage; nil if there is none.
	Ceiling *int64 `json:"ceiling"`
	// Overage is the amount above the limit.
	Overage   int64     `json:"overage"`
	Remaining *int64    `json:"remaining"`
	ResetAt   time.Time `json:"reset_at"`
	// Windows are the full windows, if the quota has no room.
	Windows []WindowQuota `json:"windows,omitempty"`
}

// WindowQuota is a window without room.
type WindowQuota struct {
	// Window is month, day, hour or minute.
	Window string `json:"window"`
	Quota
}

// Job is a job to submit.
type Job struct {
	// Subject identifies the user, as the subject of a token does.
	Subject string
	// Service is the name in weir.toml.
	Service string
	// Args is encoded as a JSON object.
	Args any
	// Amount is the maximum that the job may use. Nil: set by the service.
	Amount *int64
	// IdempotencyKey makes the same submission within 24 hours return the same job.
	IdempotencyKey string
	// RunAt is when the job runs. Zero: now.
	RunAt time.Time
	// ExpiresIn is the time from now, or from RunAt, after which a job that still waits is cancelled: whole seconds. Zero:
	// the service's.
	ExpiresIn time.Duration
	// Priority is 1 (first) to 4. Zero: 1.
	Priority int
	// Tags are River's tags of the job.
	Tags []string
	// Metadata are members of River's metadata of the job.
	Metadata map[string]any
}

// Submitted is the answer to a submission.
type Submitted struct {
	// Outcome is admitted, parked, repeated, folded, over_quota, too_large, too_many_waiting or key_reused.
	Outcome string
	// JobID is River's id of the job; nil if nothing was accepted.
	JobID *int64
	Quota *Quota
}

// Accepted reports whether there is a job.
func (s Submitted) Accepted() bool { return s.JobID != nil }

func (c Client) function(name string) string {
	if c.Schema == "" {
		return name
	}
	return pgx.Identifier{c.Schema, name}.Sanitize()
}

// encoded returns the arguments and the options as JSON.
func (j Job) encoded() (string, string, error) {
	args, err := json.Marshal(j.Args)
	if err != nil {
		return "", "", fmt.Errorf("weir: cannot encode the arguments as JSON: %w", err)
	}
	options := map[string]any{}
	if j.IdempotencyKey != "" {
		options["idempotency_key"] = j.IdempotencyKey
	}
	if !j.RunAt.IsZero() {
		options["run_at"] = j.RunAt.Format(time.RFC3339Nano)
	}
	if j.ExpiresIn != 0 {
		options["expires_in"] = int64(j.ExpiresIn / time.Second)
	}
	if j.Priority != 0 {
		options["priority"] = j.Priority
	}
	if len(j.Tags) > 0 {
		options["tags"] = j.Tags
	}
	if len(j.Metadata) > 0 {
		options["metadata"] = j.Metadata
	}
	encoded, err := json.Marshal(options)
	if err != nil {
		return "", "", fmt.Errorf("weir: cannot encode the options as JSON: %w", err)
	}
	return string(args), string(encoded), nil
}

// submission is the statement that submits one job. JSON as text also works with pgx's simple protocol.
func (c Client) submission() string {
	return "SELECT outcome, job_id, quota FROM " + c.function("weir_submit") + "($1, $2, $3::jsonb, $4::bigint, $5::jsonb)"
}

// SubmitTx submits a job inside the transaction. The user's row stays locked until it ends, so commit soon.
func (c Client) SubmitTx(ctx context.Context, tx pgx.Tx, job Job) (Submitted, error) {
	args, options, err := job.encoded()
	if err != nil {
		return Submitted{}, err
	}
	var submitted Submitted
	err = tx.QueryRow(ctx, c.submission(), job.Subject, job.Service, args, job.Amount, options).
		Scan(&submitted.Outcome, &submitted.JobID, &submitted.Quota)
	return submitted, err
}

// SubmitSQL is SubmitTx for a transaction of database/sql, of any driver for PostgreSQL.
func (c Client) SubmitSQL(ctx context.Context, tx *sql.Tx, job Job) (Submitted, error) {
	args, options, err := job.encoded()
	if err != nil {
		return Submitted{}, err
	}
	var submitted Submitted
	var quota []byte
	err = tx.QueryRowContext(ctx, c.submission(), job.Subject, job.Service, args, job.Amount, options).
		Scan(&submitted.Outcome, &submitted.JobID, &quota)
	if err == nil && quota != nil {
		err = json.Unmarshal(quota, &submitted.Quota)
	}
	return submitted, err
}

// SubmitManyTx submits up to 1000 jobs inside the transaction by one statement. With allOrNone, one refusal refuses all:
// only the answer of the first refused job then has an outcome.
func (c Client) SubmitManyTx(ctx context.Context, tx pgx.Tx, jobs []Job, allOrNone bool) ([]Submitted, error) {
	members := make([]map[string]any, len(jobs))
	for at, job := range jobs {
		args, options, err := job.encoded()
		if err != nil {
			return nil, err
		}
		members[at] = map[string]any{
			"subject": job.Subject, "service": job.Service, "amount": job.Amount,
			"args": json.RawMessage(args), "options": json.RawMessage(options),
		}
	}
	encoded, err := json.Marshal(members)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, "SELECT member, outcome, job_id, quota FROM "+c.function("weir_submit_many")+"($1::jsonb, $2)",
		string(encoded), allOrNone)
	if err != nil {
		return nil, err
	}
	submitted := make([]Submitted, len(jobs))
	var member int
	var one Submitted
	_, err = pgx.ForEachRow(rows, []any{&member, &one.Outcome, &one.JobID, &one.Quota}, func() error {
		submitted[member-1] = one
		one = Submitted{}
		return nil
	})
	return submitted, err
}

// CompleteTx completes an attempt inside the transaction: it charges the job and passes its slot on. A nil used charges
// all that was reserved. It returns what was charged, or ErrFencedOut.
func (c Client) CompleteTx(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, output any, used *int64) (int64, error) {
	var made *string
	if output != nil {
		encoded, err := json.Marshal(output)
		if err != nil {
			return 0, fmt.Errorf("weir: cannot encode the output as JSON: %w", err)
		}
		text := string(encoded)
		made = &text
	}
	var outcome string
	var charged int64
	sql := "SELECT outcome, charged FROM " + c.function("weir_complete") + "($1, $2, $3::jsonb, $4::bigint, $5::timestamptz)"
	if err := tx.QueryRow(ctx, sql, job.ID, job.Attempt, made, used, job.CreatedAt).Scan(&outcome, &charged); err != nil {
		return 0, err
	}
	if outcome == "fenced_out" {
		return 0, ErrFencedOut
	}
	return charged, nil
}

// FailTx records a failed attempt inside the transaction, and frees its slot. With a zero retryAt, the service's retry
// policy sets the time. The outcome is retry, discarded or cancelled. After it, the worker must return an error.
func (c Client) FailTx(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, failure error, retryAt time.Time) (string, error) {
	var at *time.Time
	if !retryAt.IsZero() {
		at = &retryAt
	}
	var outcome string
	sql := "SELECT " + c.function("weir_fail") + "($1, $2, $3, $4::timestamptz, $5::timestamptz)"
	if err := tx.QueryRow(ctx, sql, job.ID, job.Attempt, storable(failure.Error()), at, job.CreatedAt).Scan(&outcome); err != nil {
		return "", err
	}
	if outcome == "fenced_out" {
		return "", ErrFencedOut
	}
	return outcome, nil
}

// Progress records the progress of an attempt, from 0 to 1, or returns ErrFencedOut or ErrCancelled. Others see it
// immediately, because it runs outside the job's transaction.
func (c Client) Progress(ctx context.Context, pool *pgxpool.Pool, job *rivertype.JobRow, fraction float64, message string) error {
	sql := "SELECT " + c.function("weir_progress") + "($1, $2, $3::float8, $4, $5::timestamptz)"
	var outcome string
	if err := pool.QueryRow(ctx, sql, job.ID, job.Attempt, fraction, message, job.CreatedAt).Scan(&outcome); err != nil {
		return err
	}
	return ended(outcome)
}

// ended is the error of an outcome that ends the attempt.
func ended(outcome string) error {
	switch outcome {
	case "fenced_out":
		return ErrFencedOut
	case "cancelled":
		return ErrCancelled
	}
	return nil
}

// ExtendTx reserves more for a running job. It returns false and changes nothing if that is over the quota, and
// ErrCancelled if the job was cancelled.
func (c Client) ExtendTx(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, more int64) (bool, error) {
	var outcome string
	sql := "SELECT outcome FROM " + c.function("weir_extend") + "($1, $2, $3, $4::timestamptz)"
	if err := tx.QueryRow(ctx, sql, job.ID, job.Attempt, more, job.CreatedAt).Scan(&outcome); err != nil {
		return false, err
	}
	return outcome == "extended", ended(outcome)
}

// Work runs a River job in a transaction that also completes it: what `do` writes, the charge and the completion are
// committed together. Call it in a worker's Work method, and return its result.
//
// River records a failure of `do`, so the worker's NextRetry and the client's RetryPolicy and ErrorHandler apply. Weir
// frees the slot within about a tenth of a second.
//
// With KeepAlive, the context of `do` ends when the attempt has to stop. context.Cause tells why.
func Work[T river.JobArgs](ctx context.Context, c Client, pool *pgxpool.Pool, job *river.Job[T],
	do func(ctx context.Context, tx pgx.Tx) (output any, used *int64, err error)) error {
	ctx, forget, end := enter(ctx, job.JobRow)
	defer end()
	failure := func() error {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		output, used, err := do(ctx, tx)
		if err != nil {
			return err
		}
		// Work that is done counts, even if the attempt had to stop meanwhile. The database decides.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), silentAfter)
		defer cancel()
		if _, err = c.CompleteTx(last, tx, job.JobRow, output, used); err != nil {
			return err
		}
		// From the commit on, the attempt is over, and must not be stopped for that.
		forget()
		return tx.Commit(last)
	}()
	if failure == nil {
		return nil
	}
	return recordable{failure}
}

// requireFit returns ErrWrongVersion if the database or this client is too old for the other.
func (c Client) requireFit(ctx context.Context, pool *pgxpool.Pool) error {
	var found, oldestClient int
	err := pool.QueryRow(ctx, "SELECT upgrade, oldest_client FROM "+c.function("weir_version")+"()").Scan(&found, &oldestClient)
	var failure *pgconn.PgError
	switch {
	case errors.As(err, &failure) && failure.Code == "42883":
		return fmt.Errorf("%w: upgrade the database with `weir migrate`, or name Weir's schema: "+
			"there is no function weir_version", ErrWrongVersion)
	case err != nil:
		return err
	case found < upgrade:
		return fmt.Errorf("%w: upgrade the database with `weir migrate`: it has upgrade %d of Weir's schema, "+
			"and this client needs %d", ErrWrongVersion, found, upgrade)
	case oldestClient > upgrade:
		return fmt.Errorf("%w: upgrade this client: it is made for upgrade %d of Weir's schema, "+
			"and the database serves clients from %d on", ErrWrongVersion, upgrade, oldestClient)
	}
	return nil
}

// KeepAlive registers a River client, and sends a heartbeat every 1.5 seconds until ctx ends. Call it before the client
// starts, and end ctx after the client has stopped. It returns after the first heartbeat; the others run in the background,
// over a connection of their own. Returns ErrWrongVersion if the database or this client has to be upgraded first.
//
// Without it, the jobs of a killed process run again after an hour. With it, they run again within 15 seconds, and a
// process that cannot reach the database for 10 seconds loses its jobs. Attempts in Work end when they are cancelled,
// overdue or taken over, and when no heartbeat succeeds for eight seconds. The client's id has letters, digits, '.', '_'
// and '-' only, as River's own ids have.
func (c Client) KeepAlive(ctx context.Context, pool *pgxpool.Pool, clientID string) error {
	if err := c.requireFit(ctx, pool); err != nil {
		return err
	}
	heart := &heart{
		sql:    "SELECT job_id, attempt, state FROM " + c.function("weir_heartbeat") + "($1)",
		config: pool.Config().ConnConfig,
		worker: clientID,
	}
	if err := heart.beat(ctx); err != nil {
		return err
	}
	go heart.run(ctx)
	return nil
}

const (
	beatInterval = 1500 * time.Millisecond
	silentAfter  = 8 * time.Second
)

// heart sends the heartbeats of a River client.
type heart struct {
	sql    string
	config *pgx.ConnConfig
	worker string
	// The handlers may use all connections of the pool.
	connection *pgx.Conn
}

func (h *heart) run(ctx context.Context) {
	ticker := time.NewTicker(beatInterval)
	defer ticker.Stop()
	// Each heartbeat that succeeds postpones it.
	silence := time.AfterFunc(silentAfter, func() { h.silent(ctx) })
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			h.close()
			return
		case <-ticker.C:
		}
		sent := time.Now()
		if err := h.beat(ctx); err == nil {
			silence.Reset(silentAfter - time.Since(sent))
		} else if ctx.Err() == nil {
			slog.Warn("weir: a heartbeat failed", "error", err)
		}
	}
}

// silent ends all attempts until a heartbeat succeeds.
func (h *heart) silent(ctx context.Context) {
	if ctx.Err() == nil {
		running.stop(h.worker, func(attemptKey) error { return ErrSilent }, time.Now())
	}
}

func (h *heart) close() {
	if h.connection != nil {
		_ = h.connection.Close(context.Background())
		h.connection = nil
	}
}

// beat sends one heartbeat, and ends the contexts of attempts that have to stop. The next one repeats one that failed.
func (h *heart) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatInterval)
	defer cancel()
	sent := time.Now()
	states, err := h.states(ctx)
	if err != nil {
		h.close()
		return err
	}
	running.stop(h.worker, func(key attemptKey) error {
		switch states[key] {
		case "running":
			return nil
		case "cancelled":
			return ErrCancelled
		case "overdue":
			return ErrOverdue
		}
		return ErrFencedOut
	}, sent)
	return nil
}

func (h *heart) states(ctx context.Context) (map[attemptKey]string, error) {
	if h.connection == nil {
		connection, err := pgx.ConnectConfig(ctx, h.config.Copy())
		if err != nil {
			return nil, err
		}
		h.connection = connection
	}
	rows, err := h.connection.Query(ctx, h.sql, h.worker)
	if err != nil {
		return nil, err
	}
	states := map[attemptKey]string{}
	key := attemptKey{worker: h.worker}
	var state string
	_, err = pgx.ForEachRow(rows, []any{&key.job, &key.attempt, &state}, func() error {
		states[key] = state
		return nil
	})
	return states, err
}

// attemptKey identifies an attempt.
type attemptKey struct {
	worker  string
	job     int64
	attempt int
}

// attempts are the attempts in Work, of all clients of this process.
type attempts struct {
	sync.Mutex
	all map[attemptKey]*attempt
}

type attempt struct {
	since time.Time
	end   context.CancelCauseFunc
}

var running = attempts{all: map[attemptKey]*attempt{}}

// enter remembers an attempt until one of the results is called. The second one also ends its context, which ends by
// itself when the attempt has to stop.
func enter(ctx context.Context, job *rivertype.JobRow) (context.Context, func(), func()) {
	ctx, end := context.WithCancelCause(ctx)
	key := attemptKey{job: job.ID, attempt: job.Attempt}
	if by := job.AttemptedBy; len(by) > 0 {
		key.worker = by[len(by)-1]
	}
	entered := &attempt{since: time.Now(), end: end}
	running.Lock()
	running.all[key] = entered
	running.Unlock()
	forget := func() {
		running.Lock()
		defer running.Unlock()
		if running.all[key] == entered {
			delete(running.all, key)
		}
	}
	return ctx, forget, func() {
		forget()
		end(nil)
	}
}

// stop ends the attempts of a client that started before this time, and for which there is a cause.
func (a *attempts) stop(worker string, causeOf func(attemptKey) error, before time.Time) {
	a.Lock()
	defer a.Unlock()
	for key, attempt := range a.all {
		if key.worker != worker || !attempt.since.Before(before) {
			continue
		}
		if cause := causeOf(key); cause != nil {
			slog.Warn("weir: an attempt has to stop", "job", key.job, "attempt", key.attempt, "cause", cause)
			attempt.end(cause)
			delete(a.all, key)
		}
	}
}

// storable returns the text without what PostgreSQL cannot store: NUL, and bytes that are not UTF-8.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

// recordable is a failure that River can record. River records failures of several jobs in one statement, so text that
// PostgreSQL cannot store would fail all of them.
type recordable struct{ error }

func (failure recordable) Error() string { return storable(failure.error.Error()) }

func (failure recordable) Unwrap() error { return failure.error }
