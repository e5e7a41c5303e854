// A worker with River's ways to decide about a failure. Its pool uses pgx's simple protocol, as some poolers require. The
// argument is a user. The program submits a job for each way, and one that succeeds. It ends with its standard input.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"insert/fleet"

	"github.com/weir-queue/weir/clients/go"
)

type worker struct {
	river.WorkerDefaults[fleet.Args]
	pool *pgxpool.Pool
}

func (w *worker) Work(ctx context.Context, job *river.Job[fleet.Args]) error {
	return weir.Work(ctx, weir.Client{}, w.pool, job, func(ctx context.Context, tx pgx.Tx) (any, *int64, error) {
		if job.Args.How != "succeeds" {
			return nil, nil, errors.New(job.Args.How)
		}
		if err := (weir.Client{}).Progress(ctx, w.pool, job.JobRow, 0.5, "half of it"); err != nil {
			return nil, nil, err
		}
		if extended, err := (weir.Client{}).ExtendTx(ctx, tx, job.JobRow, 2); err != nil || !extended {
			return nil, nil, errors.Join(err, errors.New("not extended"))
		}
		used := int64(3)
		return map[string]string{"how": job.Args.How}, &used, nil
	})
}

// NextRetry applies to one of the jobs. A zero time leaves the decision to the client's policy.
func (w *worker) NextRetry(job *river.Job[fleet.Args]) time.Time {
	if job.Args.How == "worker's time" {
		return time.Now().Add(40 * time.Minute)
	}
	return time.Time{}
}

type policy struct{}

func (policy) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(90 * time.Minute) }

type handler struct{}

func (handler) HandleError(_ context.Context, _ *rivertype.JobRow, failure error) *river.ErrorHandlerResult {
	return &river.ErrorHandlerResult{SetCancelled: failure.Error() == "handler cancels"}
}

func (handler) HandlePanic(context.Context, *rivertype.JobRow, any, string) *river.ErrorHandlerResult {
	return nil
}

func submit(ctx context.Context, pool *pgxpool.Pool, user string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, how := range []string{"worker's time", "client's policy", "handler cancels", "succeeds"} {
			job := weir.Job{Subject: user, Service: "analysis", Args: fleet.Args{How: how}, IdempotencyKey: how, ExpiresIn: 2 * time.Hour}
			if submitted, err := (weir.Client{}).SubmitTx(ctx, tx, job); err != nil || !submitted.Accepted() {
				return errors.Join(err, errors.New("not accepted: "+submitted.Outcome))
			}
		}
		return nil
	})
}

func main() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	rivers, err := pgxpool.NewWithConfig(ctx, config.Copy())
	if err != nil {
		log.Fatal(err)
	}
	defer rivers.Close()
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := submit(ctx, pool, os.Args[1]); err != nil {
		log.Fatal(err)
	}
	fleet.Run(rivers, &worker{pool: pool}, river.Config{ErrorHandler: handler{}, RetryPolicy: policy{}})
}
