// The fleet of `npm run -s bench -- languages`. It runs no-op jobs, each of which writes a row of the product, until its
// standard input ends. The first argument sets how jobs are completed: `weir` and `river-tx` complete a job in the row's
// transaction, with weir_complete or River's JobCompleteTx. With `river`, River's client completes many jobs at once.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-queue/weir/clients/go"
)

type work struct{}

func (work) Kind() string { return "analysis:analyze" }

const insert = "INSERT INTO results (number) VALUES ($1)"

type worker struct {
	river.WorkerDefaults[work]
	pool *pgxpool.Pool
	how  string
}

func (w *worker) Work(ctx context.Context, job *river.Job[work]) error {
	switch w.how {
	case "weir":
		return weir.Work(ctx, weir.Client{}, w.pool, job, func(ctx context.Context, tx pgx.Tx) (any, *int64, error) {
			_, err := tx.Exec(ctx, insert, job.ID)
			return nil, nil, err
		})
	case "river-tx":
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insert, job.ID); err != nil {
				return err
			}
			_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
			return err
		})
	case "river":
		_, err := w.pool.Exec(ctx, insert, job.ID)
		return err
	}
	return fmt.Errorf("unknown way %q; expected weir, river-tx or river", w.how)
}

func main() {
	at := flag.Int("workers", 20, "how many jobs are worked on at once")
	flag.Parse()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	// Some connections for River's client.
	config.MaxConns = int32(*at + 5)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{pool: pool, how: flag.Arg(0)})
	fleet, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:          time.Millisecond,
		LeaderElectionDisabled: true,
		Queues:                 map[string]river.QueueConfig{"analysis_default": {MaxWorkers: *at}},
		Workers:                workers,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := fleet.Start(ctx); err != nil {
		log.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := fleet.StopAndCancel(ctx); err != nil {
		log.Fatal(err)
	}
}
