//go:build ignore

// Command certmanager runs cert-manager's own controllers, as far as CA and self-signed issuers
// need them, against the API server of a kubeconfig, which has the custom resource definitions. It
// writes one line to standard output when it is ready. It is built in a module of its own, see
// README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("certmanager", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "of an administrator (`file`)")
	namespace := flags.String("cluster-resource-namespace", "default", "where the Secrets of cluster issuers are (`name`)")
	verbose := flags.Bool("v", false, "log what the controllers do")
	if err := flags.Parse(args); err != nil {
		return err
	}
	logger := logr.Discard()
	if *verbose {
		// Not klog.Background: as the logger of klog it would call itself.
		logger = textlogger.NewLogger(textlogger.NewConfig())
	}
	klog.SetLogger(logger)
	ctx = logr.NewContext(ctx, logger)
	return runControllers(ctx, *kubeconfig, *namespace, stdout)
}

func runControllers(ctx context.Context, kubeconfig, namespace string, stdout io.Writer) error {
	opts := controller.ContextOptions{
		Kubeconfig: kubeconfig,
		// For API servers without fair queueing; others are not limited.
		KubernetesAPIQPS: 1000, KubernetesAPIBurst: 1000,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: namespace},
		CertificateOptions: controller.CertificateOptions{
			// cert-manager's flags default to an hour, the options to nothing at all.
			CertificateRequestMinimumBackoffDuration: time.Second,
			CertificateRequestMaximumBackoffDuration: 10 * time.Second,
		},
	}
	factory, err := controller.NewContextFactory(ctx, opts)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	var all []controller.Interface
	for name, construct := range controller.Known() {
		c, err := construct(factory)
		if err != nil {
			return fmt.Errorf("controller %s: %w", name, err)
		}
		all = append(all, c)
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	return serve(ctx, shared, all, stdout)
}

func serve(ctx context.Context, shared *controller.Context, all []controller.Interface, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	for _, c := range all {
		group.Go(func() {
			// 5 workers are cert-manager's default.
			if err := c.Run(5, ctx); err != nil && ctx.Err() == nil {
				mu.Lock()
				failed = errors.Join(failed, err)
				mu.Unlock()
				cancel()
			}
		})
	}
	shared.SharedInformerFactory.WaitForCacheSync(ctx.Done())
	shared.KubeSharedInformerFactory.WaitForCacheSync(ctx.Done())
	fmt.Fprintln(stdout, "ready")
	group.Wait()
	return failed
}
