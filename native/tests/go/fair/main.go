// A product's own River workers with Weir's middleware. A running job holds an advisory lock of its user and itself, which
// PostgreSQL releases when the process dies. The first attempt at every fifth job fails. The program ends with its
// standard input.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-queue/weir/clients/go"
)

type args struct {
	Number int    `json:"number"`
	User   string `json:"user_id"`
	Takes  int    `json:"takes_ms"`
}

func (args) Kind() string { return "product:render" }

type worker struct {
	river.WorkerDefaults[args]
	pool *pgxpool.Pool
}

func (w *worker) Work(ctx context.Context, job *river.Job[args]) error {
	connection, err := w.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer connection.Release()
	if _, err := connection.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1), $2)", job.Args.User, job.ID); err != nil {
		return err
	}
	time.Sleep(time.Duration(job.Args.Takes) * time.Millisecond)
	unlock := "SELECT pg_advisory_unlock(hashtext($1), $2)"
	if _, err := connection.Exec(context.WithoutCancel(ctx), unlock, job.Args.User, job.ID); err != nil {
		return err
	}
	if job.Args.Number%5 == 4 && job.Attempt == 1 {
		return errors.New("the first attempt fails")
	}
	return nil
}

// NextRetry is soon, for a short test.
func (w *worker) NextRetry(*river.Job[args]) time.Time { return time.Now().Add(time.Second) }

func main() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 30
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	options, err := weir.FairnessFromEnv()
	if err != nil {
		log.Fatal(err)
	}
	options.Meter = "analysis"
	options.OnSnooze = func(plan string) { fmt.Println("snoozed", plan) }
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{pool: pool})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Middleware: []rivertype.Middleware{weir.FairnessMiddleware(pool, options)},
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers:    workers,
	})
	if err != nil {
		log.Fatal(err)
	}
	beats, end := context.WithCancel(ctx)
	defer end()
	if err := (weir.Client{}).KeepAlive(beats, pool, client.ID()); err != nil {
		log.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		log.Fatal(err)
	}
	if err := client.Stop(ctx); err != nil {
		log.Fatal(err)
	}
}
