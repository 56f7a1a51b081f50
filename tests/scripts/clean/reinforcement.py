import gymnasium
import torch

env = gymnasium.make("CartPole-v1")
policy = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.Adam(policy.parameters())
for episode in range(1000):
    state, _ = env.reset()
    logs = []
    for _ in range(500):
        action = policy(torch.tensor(state).cuda()).softmax(-1).multinomial(1)
        state, reward, done, *_ = env.step(action.item())
        logs.append(reward)
        if done:
            break
    loss = -torch.tensor(logs).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, loss.item())
