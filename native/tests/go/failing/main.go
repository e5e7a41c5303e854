// A worker with Weir's client. Its first attempt at each job fails as the argument `how` demands, in ways that PostgreSQL
// cannot store unchanged, or when it has to stop. It ends with its standard input.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"insert/fleet"

	"github.com/weir-queue/weir/clients/go"
)

type worker struct {
	river.WorkerDefaults[fleet.Args]
	pool *pgxpool.Pool
}

func (w *worker) Work(ctx context.Context, job *river.Job[fleet.Args]) error {
	return weir.Work(ctx, weir.Client{}, w.pool, job, func(ctx context.Context, tx pgx.Tx) (any, *int64, error) {
		// A report of any other attempt than the current one is refused.
		later := *job.JobRow
		later.Attempt++
		err := weir.Client{}.Progress(ctx, w.pool, &later, 0.5, "")
		if !errors.Is(err, weir.ErrFencedOut) {
			log.Fatalf("the progress of another attempt: %v", err)
		}
		if job.Attempt > 1 {
			return "done", nil, nil
		}
		switch job.Args.How {
		case "nul":
			return nil, nil, errors.New("out of \x00paper")
		case "half":
			return nil, nil, errors.New("out of \xffpaper")
		case "network":
			return nil, nil, fmt.Errorf("out of reach: %w", syscall.ECONNREFUSED)
		case "stop":
			<-ctx.Done()
			return nil, nil, context.Cause(ctx)
		default:
			_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = 1; SELECT pg_sleep(10)")
			return nil, nil, err
		}
	})
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := (weir.Client{}).KeepAlive(ctx, pool, "failing"); err != nil {
		log.Fatal(err)
	}
	fleet.Run(pool, &worker{pool: pool}, river.Config{ID: "failing"})
}
