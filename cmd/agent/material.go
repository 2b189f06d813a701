package main

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/adapters/prometheus"
)

// What key material is used for: values of a metric label.
const (
	useClient     = "client"
	useServer     = "server"
	useCA         = "ca"
	useWebhookCAs = "webhook_ca"
)

// keyMaterial is one set of files, and what it is used for.
type keyMaterial struct {
	*httpmtls.Files

	uses []string
	// renewed is called when there is a new generation. It is set before the files are followed.
	renewed func()
}

// keys are all key material. Serving and client are the same set unless the webhook has a certificate of its own; callers is
// nil unless the API server must show one.
type keys struct{ client, serving, callers *keyMaterial }

// newKeys reads all files. The error names each set that is broken.
func newKeys(c config, metrics *prometheus.Agent, log *slog.Logger) (keys, error) {
	var (
		k    keys
		errs [3]error
	)

	if c.serving == (httpmtls.Paths{}) {
		k.client, errs[0] = newKeyMaterial(c.client, metrics, log, useClient, useServer)
		k.serving = k.client
	} else {
		k.client, errs[0] = newKeyMaterial(c.client, metrics, log, useClient)
		k.serving, errs[1] = newKeyMaterial(c.serving, metrics, log, useServer)
	}

	if c.webhookCAs != "" {
		k.callers, errs[2] = newKeyMaterial(httpmtls.Paths{CA: c.webhookCAs}, metrics, log, useWebhookCAs)
	}

	return k, errors.Join(errs[:]...)
}

// all returns each set once.
func (k keys) all() []*keyMaterial {
	sets := []*keyMaterial{k.client}

	if k.serving != k.client {
		sets = append(sets, k.serving)
	}

	if k.callers != nil {
		sets = append(sets, k.callers)
	}

	return sets
}

// callerSource is nil when the webhook asks for no client certificate.
func (k keys) callerSource() httpmtls.Source {
	if k.callers == nil {
		return nil
	}

	return k.callers
}

func newKeyMaterial(paths httpmtls.Paths, metrics *prometheus.Agent, log *slog.Logger, uses ...string) (*keyMaterial, error) {
	k := &keyMaterial{uses: uses, renewed: func() {}}

	var err error

	k.Files, err = httpmtls.NewFiles(paths, httpmtls.FilesOptions{
		Logger: log.With(slog.String("use", k.name())),
		Hooks: httpmtls.FilesHooks{
			Reloaded: func(time.Time) {
				for _, use := range uses {
					metrics.KeyMaterial(use).Reloaded(k.expiry(use))
				}

				k.measure(metrics)
				k.renewed()
			},
			Refused: func(problem string) {
				for _, use := range uses {
					metrics.KeyMaterial(use).Refused(problem)
				}
			},
		},
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // It names the file.
	}

	k.measure(metrics)

	return k, nil
}

func (k *keyMaterial) name() string { return strings.Join(k.uses, ",") }

// measure notes when what is in use expires: the certificate, and the bundle beside it.
func (k *keyMaterial) measure(metrics *prometheus.Agent) {
	for _, use := range k.uses {
		metrics.KeyMaterial(use).Expires(k.expiry(use))
	}

	if k.uses[0] == useClient {
		metrics.KeyMaterial(useCA).Expires(k.expiry(useCA))
	}
}

func (k *keyMaterial) expiry(use string) time.Time {
	material := k.Status().Material
	if use == useCA || use == useWebhookCAs {
		return material.RootsNotAfter
	}

	return material.NotAfter
}
