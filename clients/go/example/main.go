// Orders with a job each. `order SUBJECT N` inserts N orders concurrently, each in the transaction that submits its
// job. Without quota, there is neither an order nor a job. `work` is a River client. It completes each job in the
// transaction that writes its result, until SIGTERM or the end of its standard input.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-queue/weir/clients/go"
)

type order struct {
	Order int    `json:"order"`
	Fails int    `json:"fails,omitempty"`
	User  string `json:"user_id,omitempty"`
}

func (order) Kind() string { return "analysis:analyze" }

var (
	client = weir.Client{}
	errNo  = errors.New("over the quota")
	pool   *pgxpool.Pool
)

// place inserts an order and submits its job, or does neither.
func place(ctx context.Context, subject string, number int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (number) VALUES ($1)", number); err != nil {
			return err
		}
		job := weir.Job{Subject: subject, Service: "analysis", Args: order{Order: number}}
		submitted, err := client.SubmitTx(ctx, tx, job)
		if err == nil && !submitted.Accepted() {
			return errNo
		}
		return err
	})
}

func createTables(ctx context.Context) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// Programs that start together would create the tables twice.
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(17)")
		for _, table := range []string{"orders", "results"} {
			if err == nil {
				_, err = tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (number int NOT NULL)")
			}
		}
		return err
	})
}

type worker struct {
	river.WorkerDefaults[order]
	takes time.Duration
}

func (w *worker) Work(ctx context.Context, job *river.Job[order]) error {
	// Long work is done before the transaction, because the transaction occupies a connection.
	time.Sleep(w.takes/2 + rand.N(w.takes+1))
	return weir.Work(ctx, client, pool, job, func(ctx context.Context, tx pgx.Tx) (any, *int64, error) {
		if job.Attempt <= job.Args.Fails {
			return nil, nil, fmt.Errorf("attempt %d fails", job.Attempt)
		}
		_, err := tx.Exec(ctx, "INSERT INTO results (number) VALUES ($1)", job.Args.Order)
		return map[string]int{"order": job.Args.Order}, nil, err
	})
}

func main() {
	takes := flag.Duration("takes", 20*time.Millisecond, "the average duration of the work on an order")
	name := flag.String("name", "", "the id of the River client; default: River's choice")
	at := flag.Int("workers", 8, "the number of concurrent jobs of each lane")
	flag.Parse()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 40
	if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := createTables(ctx); err != nil {
		log.Fatal(err)
	}
	if flag.Arg(0) == "order" {
		count, err := strconv.Atoi(flag.Arg(2))
		if err != nil {
			log.Fatal(err)
		}
		var group sync.WaitGroup
		var accepted, refused atomic.Int32
		for number := range count {
			group.Go(func() {
				switch err := place(ctx, flag.Arg(1), number); {
				case err == nil:
					accepted.Add(1)
				case errors.Is(err, errNo):
					refused.Add(1)
				default:
					log.Fatal(err)
				}
			})
		}
		group.Wait()
		fmt.Println(accepted.Load(), refused.Load())
		return
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{takes: *takes})
	fleet, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		ID:            *name,
		FetchCooldown: time.Millisecond,
		// Weir's scheduler leads.
		LeaderElectionDisabled: true,
		Queues: map[string]river.QueueConfig{
			"analysis_default":  {MaxWorkers: *at},
			"analysis_priority": {MaxWorkers: *at},
		},
		Workers: workers,
	})
	if err != nil {
		log.Fatal(err)
	}
	alive, end := context.WithCancel(ctx)
	defer end()
	if err := client.KeepAlive(alive, pool, fleet.ID()); err != nil {
		log.Fatal(err)
	}
	if err := fleet.Start(ctx); err != nil {
		log.Fatal(err)
	}
	stop, forget := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer forget()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	select {
	case <-stop.Done():
	case <-ended:
	}
	// Running jobs are finished, and others are left to other workers.
	if err := fleet.Stop(ctx); err != nil {
		log.Fatal(err)
	}
}
