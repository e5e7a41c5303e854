// A River client with its own jobs and workers, and Weir's limit of running jobs by user and plan. `go run . SUBJECT`
// inserts four jobs of that user, as any River program does, and works them. A user of the plan Free runs one at a time.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	weir "github.com/weir-queue/weir/clients/go"
)

type render struct {
	Page int    `json:"page"`
	User string `json:"user_id"` // The limit counts per user.
}

func (render) Kind() string { return "render" }

type worker struct {
	river.WorkerDefaults[render]
	now  atomic.Int32
	done chan int
}

func (w *worker) Work(_ context.Context, job *river.Job[render]) error {
	fmt.Printf("page %d: %d at once\n", job.Args.Page, w.now.Add(1))
	time.Sleep(200 * time.Millisecond)
	w.now.Add(-1)
	w.done <- job.Args.Page
	return nil
}

func run(ctx context.Context, user string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	options, err := weir.FairnessFromEnv()
	if err != nil {
		return err
	}
	options.Meter = "analysis" // The meter of weir.toml with the slots.

	rendering := &worker{done: make(chan int)}
	workers := river.NewWorkers()
	river.AddWorker(workers, rendering)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Middleware: []rivertype.Middleware{weir.FairnessMiddleware(pool, options)},
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers:    workers,
	})
	if err != nil {
		return err
	}
	const pages = 4
	for page := range pages {
		if _, err := client.Insert(ctx, render{Page: page, User: user}, nil); err != nil {
			return err
		}
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	for range pages {
		<-rendering.done
	}
	return client.Stop(ctx)
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: go run . SUBJECT")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
