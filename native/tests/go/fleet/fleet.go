// Package fleet runs a River client with one worker, for programs of tests.
package fleet

import (
	"context"
	"io"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

// Args are the arguments of a job. How names what its attempts do.
type Args struct {
	How string `json:"how"`
}

// Kind is that of the service `analysis`.
func (Args) Kind() string { return "analysis:analyze" }

// Run works jobs until standard input ends. The settings need no workers and no queues.
func Run(pool *pgxpool.Pool, worker river.Worker[Args], config river.Config) {
	ctx := context.Background()
	lane := river.QueueConfig{MaxWorkers: 3}
	config.LeaderElectionDisabled = true
	config.Queues = map[string]river.QueueConfig{"analysis_default": lane, "analysis_priority": lane}
	config.Workers = river.NewWorkers()
	river.AddWorker(config.Workers, worker)
	client, err := river.NewClient(riverpgxv5.New(pool), &config)
	if err != nil {
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
