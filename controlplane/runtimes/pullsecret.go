package runtimes

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pullSecretAge is the longest time for which the content of a pull secret is kept.
const pullSecretAge = time.Minute

// pullSecret reads a Secret of the control plane for all runtimes, at most once a minute.
type pullSecret struct {
	reader client.Reader
	name   types.NamespacedName

	mu      sync.Mutex
	content []byte
	read    time.Time
}

// get returns nil without a name.
func (p *pullSecret) get(ctx context.Context) ([]byte, error) {
	if p.name == (types.NamespacedName{}) {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.content != nil && time.Since(p.read) < pullSecretAge {
		return p.content, nil
	}
	secret := &corev1.Secret{}
	if err := p.reader.Get(ctx, p.name, secret); err != nil {
		return nil, fmt.Errorf("pull secret %s: %w", p.name, err)
	}
	content := secret.Data[corev1.DockerConfigJsonKey]
	if len(content) == 0 {
		return nil, fmt.Errorf("pull secret %s: want a %s, have none", p.name, corev1.DockerConfigJsonKey)
	}
	p.content, p.read = content, time.Now()
	return content, nil
}
