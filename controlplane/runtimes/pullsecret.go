package runtimes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const pullSecretAge = time.Minute

// readPullSecret reads about once a minute. It returns nil without a name.
func (r *reconciler) readPullSecret(ctx context.Context) ([]byte, error) {
	name := r.opts.PullSecret
	if name == (types.NamespacedName{}) {
		return nil, nil
	}

	kept, isKept := r.pulled.Get(name)
	if isKept {
		content, _ := kept.([]byte)
		return content, nil
	}

	secret := &corev1.Secret{}
	if err := r.secrets.Get(ctx, name, secret); err != nil {
		return nil, fmt.Errorf("pull secret %s: %w", name, err)
	}
	content := secret.Data[corev1.DockerConfigJsonKey]
	if len(content) == 0 {
		return nil, fmt.Errorf("pull secret %s: want a %s, have none", name, corev1.DockerConfigJsonKey)
	}

	r.pulled.Set(name, content, pullSecretAge)
	return content, nil
}
