// The words of Learn: chapters, uses, misconceptions, questions. A blank line parts paragraphs.

export const CHAPTERS = ["cuts", "tensor", "bubble", "memory", "places", "tuning", "uses", "myths", "questions"] as const;
export const MYTHS = ["faster", "bubble", "memory", "tensor", "zero", "batch", "loss", "split"] as const;
export const QUESTIONS = ["axes", "order", "columns", "utilisation", "flight", "sequence", "vocabulary", "rings", "reduce", "lockstep", "tune", "verify"] as const;

export const lessonStrings = {
  "learn.try": ["Try it", "动手试试"],
  "learn.run": ["Run it", "运行命令"],
  "learn.code": ["In the code", "代码位置"],
  "learn.next": ["Next", "下一章"],
  "learn.contents": ["Chapters", "章节"],

  "learn.cuts": ["Three ways to cut", "三种切法"],
  "learn.cuts.text": [
    "A model too large or too slow for one device is cut, and there are three things to cut. data cuts the batch: every replica has the whole model and other samples. tensor cuts the matrices inside a layer. pipe cuts the stack of layers into stages.\n\nThe three go together: D × T × P devices, each at one place of the block. Its replica says which samples, its stage which layers, its tensor place which slices of them.\n\nNone of the cuts changes the mathematics. Loss, gradients and update are those of one device, to rounding.",
    "模型太大或太慢，一台设备放不下，就要切；可切的有三样。data 切 batch：每个副本有完整模型，处理不同的样本。tensor 切层内的矩阵。pipe 把层切成若干 stage。\n\n三者相乘：D × T × P 台设备，每台占据立方体中的一格。副本决定样本，stage 决定层，tensor 位置决定切片。\n\n任何切法都不改变数学：损失、梯度、更新与单设备一致（舍入误差内）。"],
  "learn.tensor": ["Inside a layer", "层的内部"],
  "learn.tensor.text": [
    "Cut a matrix by columns and each peer makes its own columns of the output from the whole input: nothing to add. Cut the next matrix by rows to match, and each peer makes a partial sum of every output. Adding them, Y = X₁W₁ + X₂W₂, is the only exchange of the pair.\n\nThat is one AllReduce after attention and one after the MLP, forward and again backward, in every layer of every microbatch. No axis talks more often, so its peers need the fastest links.",
    "矩阵按列切：每台设备用完整输入算出自己的输出列，无需相加。下一个矩阵按行切与之对应：每台设备得到每个输出的部分和。把它们相加 Y = X₁W₁ + X₂W₂，是这一对乘积唯一的通信。\n\n注意力之后一次 AllReduce，MLP 之后一次，前向反向都有，每层每个 microbatch 都有。没有哪个轴通信更频繁，所以它需要最快的链路。"],
  "learn.bubble": ["The pipeline and its bubble", "流水线与气泡"],
  "learn.bubble.text": [
    "Stage 1 cannot start before stage 0 has finished something. So the batch is cut into m microbatches, which follow each other. While the first is on its way, the last stages wait; while the last comes back, they wait again. That waiting is the bubble.\n\nAn ideal pipeline works U = m ÷ (m + P − 1) of its time. More microbatches make the bubble small; more stages make it large.\n\nThe drawing shows the same four stages with few and with many microbatches. The empty, dotted places are the bubble.",
    "stage 0 算出结果之前，stage 1 无法开始。所以 batch 切成 m 个 microbatch 依次流过。第一个还在途中时，后面的 stage 在等；最后一个返回时，又要等。这些等待就是气泡。\n\n理想流水线的工作时间占比 U = m ÷ (m + P − 1)。microbatch 越多气泡越小，stage 越多气泡越大。\n\n图中是同样四个 stage，microbatch 少与多的对比。虚线空白处就是气泡。"],
  "learn.memory": ["What is stored meanwhile", "期间存了什么"],
  "learn.memory.text": [
    "A backward needs what its forward saw, so a stage keeps the activations of every microbatch that is between the two. GPipe does all forwards first: it keeps m of them. 1F1B lets a backward follow as soon as it can: never more than 2(P − 1) + 1 are kept, however large m is. Same bubble, other memory.\n\nBelow each row the area shows how many microbatches are in flight.\n\nTwo more ways to save: recompute keeps less and computes it again; ZeRO cuts weights, gradients and moments over the replicas instead of copying them.",
    "反向需要前向见过的东西，所以 stage 要为每个「前向已做、反向未做」的 microbatch 保存激活。GPipe 先做完所有前向：要存 m 份。1F1B 让反向尽早跟上：至多存 2(P − 1) + 1 份，与 m 无关。气泡相同，显存不同。\n\n每行下方的面积表示在途的 microbatch 数。\n\n还有两种节省：recompute 少存一些、用时重算；ZeRO 把权重、梯度、动量切到各副本，而不是每份都复制。"],
  "learn.places": ["Who sits where", "谁坐在哪里"],
  "learn.places.text": [
    "A transfer takes about V ÷ B plus latency: bytes over the bandwidth of the link. NVLink inside a node carries nine times what a network card does. So who talks most sits closest: tensor inside a node, then the stages node by node, then the replicas over nodes and racks.\n\nIn order of devices that is data outermost, then pipe, tensor innermost.\n\nThe drawing breaks the rule: T = 16 on nodes of 8. Every partial sum now crosses the network, and the page says so.",
    "一次传输约需 V ÷ B 加延迟：字节数除以链路带宽。节点内的 NVLink 是网卡的九倍。所以谁通信最多谁就坐得最近：tensor 放在节点内，然后 stage 逐节点排开，副本分布到各节点和机柜。\n\n按设备顺序：data 在最外，pipe 居中，tensor 在最内。\n\n图中打破了这条规则：8 卡节点上 T = 16。每次部分和都要跨网络，页面会标出来。"],
  "learn.tuning": ["Choosing D, T and P", "如何选 D、T、P"],
  "learn.tuning.text": [
    "Fit memory first, then make η large: the share of the step that computes. What is left is communication and bubble.\n\nStart with T as large as keeps its group inside a node and its matrices large, then as few stages as memory allows, then every remaining device to D. Then look at what the step waits for. Tensor long: lower T. Bubble long: more microbatches, fewer stages, or interleave. Memory over: more stages, recompute, a higher ZeRO.\n\nThe classic answer for a 70B model on 64 GPUs is 8 × 4 × 2. The curves show what happens around it, and where the planner goes further.",
    "先保证放得下，再让 η（一步中用于计算的占比）尽量大。剩下的是通信和气泡。\n\n先取 T：组在节点内、矩阵仍足够大；再取显存允许的最少 stage；其余设备都给 D。然后看一步在等什么。tensor 时间长：减小 T。气泡长：增加 microbatch、减少 stage，或用 interleaved。显存超出：更多 stage、recompute、更高的 ZeRO。\n\n70B 模型在 64 张 GPU 上的经典答案是 8 × 4 × 2。曲线显示它周围的情形，以及规划器能走到哪里。"],
  "learn.uses": ["Where it is used", "用在哪里"],
  "learn.uses.text": [
    "Fine-tuning 8B on one node: weights fit, so D alone with ZeRO, or T = 2 when sequences are long.\n\nPre-training 70B on tens of GPUs: T inside a node, two to four stages, the rest replicas. This page's first case.\n\nPre-training 405B on thousands: T = 8, sixteen stages, dozens of replicas over racks. Llama 3 used T = 8, P = 16, D = 128 on 16,384 GPUs (arXiv 2407.21783).\n\nServing large models: tensor and pipe cut the weights in the same way; there are no gradients, so data is only more copies.",
    "单节点微调 8B：权重放得下，只用 D 加 ZeRO；序列长时 T = 2。\n\n几十张 GPU 预训练 70B：T 在节点内，两到四个 stage，其余作副本。本页的第一个例子。\n\n数千张 GPU 预训练 405B：T = 8，十六个 stage，几十上百个副本跨机柜。Llama 3 在 16,384 张 GPU 上用了 T = 8、P = 16、D = 128（arXiv 2407.21783）。\n\n推理大模型：tensor 与 pipe 以同样方式切权重；没有梯度，data 只是更多份拷贝。"],
  "learn.myths": ["Common misconceptions", "常见误解"],
  "learn.myths.text": ["Each with a setting or a command that shows the truth.", "每条都附有能验证真相的设置或命令。"],
  "myth.faster": ["“More devices, more speed.”", "“设备越多越快。”"],
  "myth.faster.text": ["With the batch fixed, more replicas leave each less to do, and the exchange stays. Tokens per second and device fall; watch the data curve.", "batch 固定时，副本越多每个越闲，而通信不减。每设备 tokens/s 下降：看 data 曲线。"],
  "myth.bubble": ["“1F1B has a smaller bubble than GPipe.”", "“1F1B 的气泡比 GPipe 小。”"],
  "myth.bubble.text": ["It has the same. What it saves is memory: compare the two and look at the area below the rows.", "一样大。它省的是显存：对比两者，看每行下方的面积。"],
  "myth.memory": ["“More microbatches need more memory.”", "“microbatch 越多越占显存。”"],
  "myth.memory.text": ["Under GPipe, yes. Under 1F1B what is in flight is bounded by the stages; and smaller microbatches even need less.", "GPipe 是这样。1F1B 的在途数受 stage 数限制；microbatch 变小反而更省。"],
  "myth.tensor": ["“Tensor parallelism is free inside a node.”", "“节点内的 tensor 并行没有代价。”"],
  "myth.tensor.text": ["On 64 H100 with T = 4 it takes more than a tenth of the step. With T = 8 it takes more, and the products get thinner.", "64 张 H100、T = 4 时占一步的十分之一以上；T = 8 更多，矩阵也更薄。"],
  "myth.zero": ["“ZeRO replaces tensor and pipe.”", "“ZeRO 可以代替 tensor 和 pipe。”"],
  "myth.zero.text": ["It cuts weights, gradients and moments, not activations; and level 3 fetches every layer each time it is used.", "它切权重、梯度和动量，不切激活；级别 3 每次用到一层都要取回。"],
  "myth.batch": ["“The layout changes the loss curve.”", "“布局会改变损失曲线。”"],
  "myth.batch.text": ["The global batch does; how it is cut does not. Sums are divided once, by the global number of tokens.", "全局 batch 会；怎么切不会。求和后只除一次，除数是全局 token 数。"],
  "myth.loss": ["“Cutting costs accuracy.”", "“切分会损失精度。”"],
  "myth.loss.text": ["In float64 every cut equals one device to 1e-12.", "float64 下，每种切法与单设备相差不超过 1e-12。"],
  "myth.split": ["“Zero-bubble is free.”", "“zero-bubble 没有代价。”"],
  "myth.split.text": ["It fills the drain with weight gradients that waited, and must hold what they read meanwhile.", "它用推迟的权重梯度填满排空阶段，期间必须保存它们要读的东西。"],

  "learn.questions": ["Questions an interviewer asks", "面试问题"],
  "learn.questions.text": ["Answer first, then unfold.", "先自己回答，再展开。"],
  "q.axes": ["What does each axis exchange, and how often?", "每个轴交换什么，多久一次？"],
  "q.axes.text": ["tensor: partial sums, four times a layer and microbatch (two forward, two backward). pipe: one activation a boundary and microbatch, each way. data: gradients and weights, once a step.", "tensor：部分和，每层每 microbatch 四次（前向两次、反向两次）。pipe：每个边界每个 microbatch 一份激活，双向。data：梯度与权重，每步一次。"],
  "q.order": ["Why is tensor the innermost axis of the mesh?", "为什么 tensor 是网格最内层的轴？"],
  "q.order.text": ["Devices are numbered node by node. The innermost axis takes neighbours, so its groups sit inside a node and talk over NVLink.", "设备按节点编号。最内层的轴取相邻设备，所以同组都在一个节点内，走 NVLink。"],
  "q.columns": ["Why columns first, then rows?", "为什么先按列切、再按行切？"],
  "q.columns.text": ["The column-cut output is exactly the row-cut input: between the two nothing moves, and an elementwise function in between is local. Rows first would need a sum before it.", "按列切的输出恰好是按行切所需的输入：两者之间没有通信，中间的逐元素函数是本地的。先切行则必须先求和。"],
  "q.utilisation": ["Derive U = m ÷ (m + P − 1).", "推导 U = m ÷ (m + P − 1)。"],
  "q.utilisation.text": ["The last stage starts P − 1 slots late and then works m slots in a row. Of m + P − 1 slots each stage works m.", "最后一个 stage 晚 P − 1 个时隙开始，然后连续工作 m 个。共 m + P − 1 个时隙，每个 stage 工作 m 个。"],
  "q.flight": ["How many activations does 1F1B keep at stage s?", "1F1B 在 stage s 保存多少份激活？"],
  "q.flight.text": ["In lock-step, 2(P − 1 − s) + 1: a microbatch goes P − 1 − s stages on and as many back. With a program a stage, P − s.", "lock-step 下为 2(P − 1 − s) + 1：microbatch 向前走 P − 1 − s 个 stage 再返回。每 stage 独立程序时为 P − s。"],
  "q.sequence": ["What does sequence parallelism add to tensor?", "sequence parallelism 给 tensor 带来什么？"],
  "q.sequence.text": ["Between layers the sequence is cut over tensor, so stored activations shrink by T. The all-reduce becomes reduce-scatter + all-gather: the same bytes.", "层与层之间把序列切到 tensor，存储的激活缩小 T 倍。all-reduce 变成 reduce-scatter + all-gather：字节数相同。"],
  "q.vocabulary": ["Why cut the vocabulary over pipe × tensor?", "为什么把词表切到 pipe × tensor？"],
  "q.vocabulary.text": ["A head on the last stage alone makes it the slowest, and in lock-step all wait for it. Shared by all, every stage has the same work.", "head 只在最后一个 stage 会让它最慢，lock-step 下大家都要等。分给所有 stage，工作量就均匀。"],
  "q.rings": ["How long does an all-reduce of V bytes over n devices take?", "n 台设备 all-reduce V 字节要多久？"],
  "q.rings.text": ["A ring: reduce-scatter, then all-gather, each (n − 1)/n · V over the slowest link's bandwidth, plus n − 1 latencies each.", "环形算法：reduce-scatter 再 all-gather，各为 (n − 1)/n · V 除以最慢链路带宽，再加各 n − 1 次延迟。"],
  "q.reduce": ["Why must the data-parallel sum stand outside the loop over microbatches?", "data 并行的求和为什么要放在 microbatch 循环之外？"],
  "q.reduce.text": ["Sums commute: add locally over m microbatches and exchange once, not m times.", "求和可交换：先在本地累加 m 个 microbatch，只交换一次，而不是 m 次。"],
  "q.lockstep": ["What does one SPMD program cost against a program a stage?", "单个 SPMD 程序相比每 stage 一个程序，代价是什么？"],
  "q.lockstep.text": ["A tick ends when its busiest stage is done. Put a forward and a backward into one tick and 1F1B still has the ideal bubble; compare the two clocks in State.", "一个 tick 要等最忙的 stage。把一次前向与一次反向放进同一个 tick，1F1B 仍是理想气泡；在「状态」里对比两种时钟。"],
  "q.tune": ["η is 60 %. What do you look at first?", "η 只有 60 %，先看什么？"],
  "q.tune.text": ["Which kind of time is longest. Tensor: lower T, or is a group across nodes? Bubble: raise m, lower P. Data: more work a step. Then whether memory forbids the cure.", "哪种时间最长。tensor：减小 T，或有组跨节点？气泡：增大 m、减小 P。data：每步做更多。再看显存是否允许。"],
  "q.verify": ["How do you know that a layout trains the same model?", "怎么知道某种布局训练的是同一个模型？"],
  "q.verify.text": ["Run loss, gradients and three updates in float64 on the mesh and on one device; compare to 1e-12.", "在 float64 下，把损失、梯度和三次更新在网格上与单设备上各跑一遍，比较到 1e-12。"],
} satisfies Record<string, [string, string]>;
