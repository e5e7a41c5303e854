package weir

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// FairnessOptions are the options of FairnessMiddleware. The zero value has the defaults of ADR-10.
type FairnessOptions struct {
	// Client finds Weir's functions.
	Client Client
	// User returns the user of a job; empty: no user and no limit. Default: the text `user_id` of the job's arguments.
	User func(*rivertype.JobRow) string
	// Meter is the meter with the slots. Default: that of the service with the job's kind, or the only meter.
	Meter string
	// Snooze is how long a job without a slot waits at most. Default: 30 s.
	Snooze time.Duration
	// Jitter is the maximum of a random time that is added, so that jobs do not return together. Default: 10 s.
	Jitter time.Duration
	// FailOpen runs jobs without a limit if the database cannot answer. Default: they are snoozed.
	FailOpen bool
	// Disabled runs all jobs without a limit.
	Disabled bool
	// OnSnooze is called for each snooze, such as to count it. The plan is that of the user; empty if the database could
	// not answer.
	OnSnooze func(plan string)
}

// FairnessFromEnv returns the options that FAIRNESS_ENABLED, FAIRNESS_SNOOZE_DURATION and FAIRNESS_SNOOZE_JITTER set, such
// as true, 30s and 10s. The slots of plans are in the database: `weir migrate` writes FAIRNESS_FREE_LIMIT,
// FAIRNESS_PRO_LIMIT and FAIRNESS_ENTERPRISE_LIMIT.
func FairnessFromEnv() (FairnessOptions, error) {
	options := FairnessOptions{}
	if text := os.Getenv("FAIRNESS_ENABLED"); text != "" {
		enabled, err := strconv.ParseBool(text)
		if err != nil {
			return options, fmt.Errorf("weir: FAIRNESS_ENABLED must be true or false, not %q", text)
		}
		options.Disabled = !enabled
	}
	for name, to := range map[string]*time.Duration{
		"FAIRNESS_SNOOZE_DURATION": &options.Snooze,
		"FAIRNESS_SNOOZE_JITTER":   &options.Jitter,
	} {
		if text := os.Getenv(name); text != "" {
			duration, err := time.ParseDuration(text)
			if err != nil || duration <= 0 {
				return options, fmt.Errorf("weir: %s must be a duration such as 30s, not %q", name, text)
			}
			*to = duration
		}
	}
	return options, nil
}

// Fairness limits how many jobs of a user run at once, over all processes. It is a rivertype.WorkerMiddleware.
type Fairness struct {
	river.MiddlewareDefaults
	options FairnessOptions
	pool    *pgxpool.Pool
}

// FairnessMiddleware is ADR-10's limit of running jobs by user and plan, for a River client's own workers. The jobs need
// neither Weir's submission nor quota. Add it to the Middleware of river.Config. `weir schedule` must run.
//
// A job over the limit is snoozed, which costs no attempt. It starts at once when another job of its user ends. Jobs that
// were submitted through Weir have their slot already. With KeepAlive, a killed process' slots are free within 15 s,
// without it when River rescues the jobs.
func FairnessMiddleware(pool *pgxpool.Pool, options FairnessOptions) *Fairness {
	if options.User == nil {
		options.User = userOf
	}
	if options.Snooze == 0 {
		options.Snooze = 30 * time.Second
	}
	if options.Jitter == 0 {
		options.Jitter = 10 * time.Second
	}
	return &Fairness{options: options, pool: pool}
}

func userOf(job *rivertype.JobRow) string {
	var args struct {
		User any `json:"user_id"`
	}
	if err := json.Unmarshal(job.EncodedArgs, &args); err != nil {
		return ""
	}
	user, _ := args.User.(string)
	return user
}

// Work implements rivertype.WorkerMiddleware.
func (f *Fairness) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	user := f.options.User(job)
	if f.options.Disabled || user == "" {
		return doInner(ctx)
	}
	var outcome string
	var plan *string
	sql := "SELECT outcome, plan FROM " + f.options.Client.function("weir_admit") + "($1, $2, $3, $4)"
	err := f.pool.QueryRow(ctx, sql, job.ID, job.Attempt, user, textOrNil(f.options.Meter)).Scan(&outcome, &plan)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !f.options.FailOpen:
		slog.Warn("weir: a job waits, because the database could not give it a slot", "job", job.ID, "error", err)
		return f.snooze("")
	case err != nil:
		slog.Warn("weir: a job runs without a slot, because the database could not answer", "job", job.ID, "error", err)
		return doInner(ctx)
	case outcome == "fenced_out":
		return ErrFencedOut
	case outcome == "wait" && plan != nil:
		return f.snooze(*plan)
	case outcome == "wait":
		return f.snooze("")
	}
	// Also when the job is cancelled or panics.
	defer f.release(context.WithoutCancel(ctx), job)
	return doInner(ctx)
}

func (f *Fairness) snooze(plan string) error {
	if f.options.OnSnooze != nil {
		f.options.OnSnooze(plan)
	}
	return river.JobSnooze(f.options.Snooze + rand.N(f.options.Jitter))
}

// release frees the slot. If it fails, Weir frees it after the job's end.
func (f *Fairness) release(ctx context.Context, job *rivertype.JobRow) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sql := "SELECT " + f.options.Client.function("weir_release") + "($1, $2)"
	if _, err := f.pool.Exec(ctx, sql, job.ID, job.Attempt); err != nil {
		slog.Warn("weir: a slot is free only after its job's end is recorded", "job", job.ID, "error", err)
	}
}

func textOrNil(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
